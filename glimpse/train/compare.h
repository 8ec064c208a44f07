// How LycheeDecode does with roles that training found and with as many heads chosen otherwise, on passkeys that it was
// not trained on. The engine outlives the call and has room for kComparedSequences sequences; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/progress.h"
#include "glimpse/plan/profile.h"

namespace glimpse::train {

inline constexpr int kComparedSequences = 8;

struct CompareOptions {
  std::int64_t length = 0;  ///< tokens of a prompt
  std::string text;         ///< the user's own prose
  std::uint64_t seed = 1;   ///< of the training
  std::vector<plan::Budget> budgets;
  int books = 2;  ///< with kQuestions questions each
};

/// Of one choice of heads at one budget.
struct ComparedRow {
  std::string choice, budget;
  double divergence = 0;  ///< KL(dense || choice) of a passkey's tokens, nats, the mean over prompts
  double agreement = 0;   ///< share of those tokens that are dense attention's first choice
  double passkeys = 0;    ///< of a passkey's words and those of the answer in common, in order: ROUGE-L, 0 to 1
};
struct Comparison {
  std::vector<ComparedRow> rows;
  double dense = 0;  ///< `passkeys` of dense attention
  int prompts = 0;
};

/// Trained roles; as many heads behind layer 0 drawn at random (the mean of kDraws), evenly spread, and by retrieval
/// score (Wu et al., 2024) in other passkey prompts. Throws evaluate::Stopped where the progress says so.
inline constexpr int kDraws = 3;
Comparison compared(engine::Engine& engine, const plan::RolesProfile& trained, const CompareOptions& options,
                    evaluate::Progress& progress);
/// The work of it in prompt tokens, about.
std::int64_t compare_work(const CompareOptions& options);

}  // namespace glimpse::train
