#include "glimpse/engine/active_sequence.h"

#include <fmt/format.h>

#include "glimpse/base/error.h"
#include "glimpse/engine/failure.h"

namespace glimpse::engine {

ActiveSequence open_sequence(const plan::Plan& plan, Programs& programs, kv::Cache& cache) {
  ActiveSequence sequence;
  sequence.program = program_of(plan, programs);
  sequence.attention = attention::SequenceState(plan, programs.gates);
  sequence.id = cache.create();
  return sequence;
}

void close_sequence(kv::Cache& cache, ActiveSequence& sequence) {
  if (sequence.id >= 0) cache.destroy(sequence.id);
  sequence.id = -1;
}

void require_whole(const ActiveSequence& sequence) {
  if (!sequence.broken) return;
  throw UserError(
      "the sequence broke in a pass that failed, and its cache and state do not agree any more; open a new "
      "one. What failed: " +
      *sequence.broken);
}

void require_closable(const ActiveSequence& sequence) {
  const plan::Prefill& prefill = sequence.plan().prefill;
  if (sequence.open_prompt && prefill.observe == plan::Observe::last_rows) {
    throw UserError(
        fmt::format("the prefill stopped behind {} tokens, and plan '{}' observes the last {} of a prompt; prefill the "
                    "rest before a token is decoded",
                    sequence.length, sequence.plan().policy, prefill.observe_rows));
  }
}

void close_prompt(ActiveSequence& sequence) {
  if (!sequence.open_prompt) return;
  require_closable(sequence);
  sequence.attention.end_prompt(sequence.plan(), sequence.length);
  sequence.open_prompt = false;
}

void note_tokens(ActiveSequence& sequence, std::span<const Token> appended,
                 const text::BoundaryClassifier& boundaries) {
  for (const Token token : appended) {
    const Token before = sequence.tokens.empty() ? -1 : sequence.tokens.back();
    sequence.attention.boundaries.push_back(boundaries.classify(before, token));
    sequence.tokens.push_back(token);
  }
}

void forget_tokens(ActiveSequence& sequence, std::int64_t kept) {
  sequence.tokens.resize(static_cast<std::size_t>(kept));
  sequence.attention.boundaries.resize(static_cast<std::size_t>(kept));
  sequence.made.cut(kept);
}

void cut_rows(kv::Cache& cache, const ActiveSequence& sequence, std::int64_t length) {
  const std::int64_t rows = cache.length(sequence.id) - length;
  if (rows > 0) cache.truncate(sequence.id, rows);
}

void truncate(kv::Cache& cache, ActiveSequence& sequence, std::int64_t length) {
  cut_rows(cache, sequence, length);
  sequence.length = length;
  forget_tokens(sequence, length);
}

void take_rows_back(kv::Cache& cache, ActiveSequence& sequence, std::int64_t length) noexcept {
  try {
    cut_rows(cache, sequence, length);
  } catch (...) {
    sequence.broken = text_of(std::current_exception());
  }
  for (const auto& index : sequence.attention.indices) {
    if (index) index->take_back(length);
  }
}

std::int64_t live_tokens(const kv::Cache& cache, const ActiveSequence& sequence) {
  const plan::ModelShape& shape = sequence.plan().shape;
  std::int64_t live = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) live += cache.live_tokens(sequence.id, layer, head);
  }
  return live / (std::int64_t{shape.layers} * shape.kv_heads);
}

std::optional<plan::SlotId> forgetful_head(const kv::Cache& cache, const ActiveSequence& sequence) {
  const plan::ModelShape& shape = sequence.plan().shape;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      if (cache.live_tokens(sequence.id, layer, head) < sequence.length) return plan::SlotId{layer, head};
    }
  }
  return {};
}

}  // namespace glimpse::engine
