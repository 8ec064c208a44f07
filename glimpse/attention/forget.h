// What plans forget, before a step attends; the same on every device. Evicting methods decide by statistics that
// earlier steps fed: those of a sequence lie in the host's memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/sets.h"
#include "glimpse/kernels/views.h"

namespace glimpse::attention {

/// Kept between calls.
struct ForgetSpace {
  std::vector<std::int32_t> positions;
  std::vector<ScoredUnit> scores;  ///< of those that may go
};

/// For rows that decode and have their slots: frees what the plan's heads forget. One thread at a time.
void forget(kv::Cache& cache, const SequenceRows& rows, ForgetSpace& space);

/// What attention of one row gave each entry that a head read.
struct StepFeed {
  std::span<float> mean;                    ///< [entries] over the group's probabilities; overwritten
  const std::int32_t* positions = nullptr;  ///< [entries], -1 a freed slot; null: entry == position
  int group = 1;
  std::int64_t live = 0;  ///< tokens that the head has not forgotten
  std::int64_t step = 0;  ///< SequenceState::decode_steps
};
/// Space of feed_statistic, for as many entries.
struct FeedSpace {
  std::span<std::int32_t> chosen;
  std::span<std::byte> workspace;  ///< kernels::select_workspace
};
/// Into what a head forgets by [positions]. Other rules feed nothing.
void feed_statistic(plan::RetentionRule rule, const StepFeed& feed, const FeedSpace& space,
                    std::vector<float>& statistic);

/// What rows of a prompt gave to each slot of a head, summed over rows and the group.
struct PromptFeed {
  const float* sums = nullptr;  ///< [pieces], `stride` apart, [slots] each: added one piece after the other
  std::size_t pieces = 1, stride = 0;
  const std::int32_t* positions = nullptr;  ///< [slots], -1 a freed slot; null: slot == position
  std::size_t slots = 0;
  int group = 1;
};
/// The same of a prompt's rows, for a rule that observes them. `tokens`: of the sequence, these rows among them.
void feed_prompt(plan::RetentionRule rule, const PromptFeed& feed, std::int64_t tokens, std::vector<float>& statistic);

/// True where the rows of a prompt feed a statistic; stamps begin with the first generated token.
bool observes_prompt(plan::RetentionRule rule);

}  // namespace glimpse::attention
