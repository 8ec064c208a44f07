// Asks arms generated prompts: one dense prefill a prompt, from forks of which each arm answers. A plan whose own
// prefill is sparse reads the prompt by itself. Borrows engine and prompts, which outlive it; one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/answers.h"
#include "glimpse/evaluate/progress.h"
#include "glimpse/evaluate/tasks/prompts.h"

namespace glimpse::evaluate {

/// A needle at given depths: Task::single.
inline constexpr std::string_view kNeedle = "needle";
/// Tokens of a length that the answer may have; the prompt has the rest.
inline constexpr std::int64_t kAnswerTokens = 192;
/// Sequences that the engine needs room for, of the greatest length.
inline constexpr int kExamSequences = 4;

struct PlannedArm {
  std::string name;
  plan::Plan plan;
};

/// One prompt; `arm` of the key is empty.
struct Asked {
  AnswerKey key;
  std::span<const PlannedArm> arms;  ///< to be asked
};

using OnAnswer = std::function<void(const AnswerKey& key, const Answer& answer)>;
/// Who is told: of the work, and of each arm's answer. Borrows both.
struct Listeners {
  Progress& progress;
  const OnAnswer& on_answer;
};

/// Asks any prompt; at most kAnswerTokens of an answer. Throws Stopped.
void ask_prompt(engine::Engine& engine, const Asked& asked, const RetrievalPrompt& prompt, const Listeners& listeners);
/// What asking is worth in prompt tokens, about.
std::int64_t work_of(const Asked& asked);

class Examiner {
 public:
  /// The prompts are functions of the seed and of their key.
  Examiner(engine::Engine& engine, const PromptMaker& prompts, std::uint64_t seed)
      : engine_(engine), prompts_(prompts), seed_(seed) {}

  /// Calls `on_answer` behind each arm. Throws Stopped, and UserError for a task or length that makes no prompt.
  void ask(const Asked& asked, Progress& progress, const OnAnswer& on_answer) {
    ask_prompt(engine_, asked, prompt_of(asked.key), {progress, on_answer});
  }
  /// The prompt of a key. All depths of one number have the same text around the same needle.
  RetrievalPrompt prompt_of(const AnswerKey& key) const;

 private:
  engine::Engine& engine_;
  const PromptMaker& prompts_;
  std::uint64_t seed_;
};

/// A task's name or "needle". Throws UserError with the nearest name.
Task task_of(std::string_view word);

}  // namespace glimpse::evaluate
