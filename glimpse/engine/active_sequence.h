// One sequence as the engine holds it, under a request or a Sequence: its handle in the cache, its plan and what
// attention keeps of it. Whoever holds it closes it. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glimpse/attention/program.h"
#include "glimpse/attention/sequence_state.h"
#include "glimpse/engine/attention_stats.h"
#include "glimpse/engine/prefix/made.h"
#include "glimpse/engine/programs.h"
#include "glimpse/kv/cache.h"
#include "glimpse/text/boundaries.h"

namespace glimpse::engine {

using text::Token;

struct ActiveSequence {
  kv::SequenceId id = -1;
  std::shared_ptr<const attention::Program> program;  ///< shared by the sequences of an equal plan
  attention::SequenceState attention;
  std::int64_t length = 0;
  bool open_prompt = false;   ///< the last tokens are the beginning of a prompt whose rest has not come
  std::int64_t steps = 0;     ///< decoded tokens
  std::vector<Token> tokens;  ///< [length] what is in the cache
  MadeRows made;              ///< [length] how it came there
  std::vector<float> logits;  ///< [vocabulary] of the last token, as a saved session brought them; else empty
  AttentionStats stats;
  std::int64_t last_bytes = 0;  ///< read by attention in its last decoding or verifying pass
  std::function<void(const SetTrace&)> on_sets;
  std::optional<std::string> broken;  ///< what a pass failed of that left cache and state apart; nothing runs on it

  const plan::Plan& plan() const { return program->plan(); }
};

ActiveSequence open_sequence(const plan::Plan& plan, Programs& programs, kv::Cache& cache);
/// Gives its pages back, once.
void close_sequence(kv::Cache& cache, ActiveSequence& sequence);

/// Throws UserError for a sequence that a failed pass has broken.
void require_whole(const ActiveSequence& sequence);
/// Throws UserError for an open prompt whose last rows the plan should have observed.
void require_closable(const ActiveSequence& sequence);
/// Before a token is decoded: what came of a prompt is the prompt. Throws as require_closable().
void close_prompt(ActiveSequence& sequence);

/// Notes tokens that a pass appends, with their text boundaries.
void note_tokens(ActiveSequence& sequence, std::span<const Token> appended, const text::BoundaryClassifier& boundaries);
/// Keeps the first `kept` of the noted tokens.
void forget_tokens(ActiveSequence& sequence, std::int64_t kept);
/// Leaves the first `length` of its rows in the cache, whatever is noted of them.
void cut_rows(kv::Cache& cache, const ActiveSequence& sequence, std::int64_t length);
/// Takes tokens behind the first `length` out of the cache again.
void truncate(kv::Cache& cache, ActiveSequence& sequence, std::int64_t length);

/// cut_rows(), and the same for indices; where that fails it is broken. For rows that left nothing elsewhere.
void take_rows_back(kv::Cache& cache, ActiveSequence& sequence, std::int64_t length) noexcept;

/// Tokens that the sequence's heads have not forgotten, the mean over them.
std::int64_t live_tokens(const kv::Cache& cache, const ActiveSequence& sequence);
/// The first head that has freed tokens of the sequence.
std::optional<plan::SlotId> forgetful_head(const kv::Cache& cache, const ActiveSequence& sequence);

}  // namespace glimpse::engine
