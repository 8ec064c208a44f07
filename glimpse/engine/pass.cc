// One forward pass over parts of several sequences, and what it leaves in them.
#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "glimpse/base/error.h"
#include "glimpse/engine/state.h"

namespace glimpse::engine {
namespace {

using attention::PassKind;

SetTrace trace_of(const attention::HeadRecord& record, const ActiveSequence& sequence, const plan::ModelShape& shape) {
  SetTrace trace;
  trace.step = sequence.steps;
  trace.position = record.position;
  trace.layer = record.layer;
  trace.kv_head = record.kv_head;
  trace.role = record.role;
  trace.budget = record.budget;
  trace.reads_all = record.reads_all;
  trace.tokens = record.tokens;
  trace.query_sets = record.query_sets;
  if (record.published != nullptr) {
    trace.publishes = true;
    trace.publishes_all = record.published->everything;
    if (record.published->lists.size() == 1) {
      trace.published = record.published->lists.front();
    } else {
      trace.query_sets = record.published->lists;
    }
  }
  trace.coverage = record.coverage;
  trace.query = {record.query, static_cast<std::size_t>(shape.group()) * static_cast<std::size_t>(shape.head_dim)};
  return trace;
}

AttentionStats::Mass mass_of(const attention::Coverage& coverage) {
  if (coverage.count == 0) return {};
  return {coverage.mean(), coverage.least, coverage.count};
}

AttentionStats stats_of(const attention::ReadCounters& counters, std::int64_t row_bytes) {
  AttentionStats stats;
  stats.k_rows = counters.k_rows;
  stats.v_rows = counters.v_rows;
  stats.dense_k_rows = counters.dense_k_rows;
  stats.dense_v_rows = counters.dense_v_rows;
  stats.bytes_read = (counters.k_rows - counters.low_rank_rows + counters.v_rows) * row_bytes +
                     counters.low_rank_bytes + counters.index_bytes;
  stats.dense_bytes = (counters.dense_k_rows + counters.dense_v_rows) * row_bytes;
  stats.index_bytes = counters.index_bytes;
  stats.dense_steps = counters.dense_steps;
  stats.sparse_steps = counters.sparse_steps;
  stats.coverage = mass_of(counters.coverage);
  stats.audited = mass_of(counters.audited);
  stats.audits = counters.audits;
  stats.audit_s = counters.audit_s;
  stats.recalled_pages = counters.recalled_pages;
  stats.recalled_bytes = counters.recalled_bytes;
  stats.resident_hits = counters.resident_hits;
  stats.resident_tokens = counters.resident_tokens;
  return stats;
}

/// True for plans under which a pass leaves nothing behind but rows of the cache and sets that each step makes anew.
bool keeps_nothing(const plan::Plan& plan) {
  return plan.feedback == plan::Feedback::none && plan.retentions.empty() && !plan::searches_index(plan);
}

/// True for a chunk of a prompt that only appends rows: nothing is observed, and indices are made at the prompt's end.
bool only_appends(const PassPart& part) {
  const plan::Prefill& prefill = part.sequence->plan().prefill;
  const std::int64_t end = part.sequence->length + static_cast<std::int64_t>(part.tokens.size());
  if (part.kind != PassKind::prompt || prefill.sparse || end >= part.prompt_end) return false;
  return prefill.observe == plan::Observe::none ||
         (prefill.observe == plan::Observe::last_rows && end <= part.prompt_end - prefill.observe_rows);
}

}  // namespace

bool can_take_back(const PassPart& part) {
  return part.kind == PassKind::verify ||
         (part.kind != PassKind::correct && (keeps_nothing(part.sequence->plan()) || only_appends(part)));
}

std::string text_of(const std::exception_ptr& why) noexcept {
  try {
    try {
      std::rethrow_exception(why);
    } catch (const std::bad_alloc&) {
      return "out of memory; a shorter context and a smaller --prefill-chunk need less";
    } catch (const std::exception& error) {
      return error.what();
    } catch (...) {
      return "an exception that says nothing";
    }
  } catch (...) {
    return "out of memory";  // short enough to lie in the string itself
  }
}

bool is_bug(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const InternalError&) {
    return true;
  } catch (...) {
    return false;
  }
}

void require_whole(const ActiveSequence& sequence) {
  if (!sequence.broken) return;
  throw UserError(
      "the sequence broke in a pass that failed, and its cache and state do not agree any more; open a new "
      "one. What failed: " +
      *sequence.broken);
}

Busy::Busy(bool& flag, std::string_view call) : flag_(flag) {
  if (flag)
    throw UserError(std::string(call) + " was called from a callback of the engine; call it when that returned");
  flag = true;
}

std::optional<plan::SlotId> Engine::State::forgetful_head(const ActiveSequence& sequence) const {
  for (int layer = 0; layer < sequence.plan().shape.layers; ++layer) {
    for (int head = 0; head < sequence.plan().shape.kv_heads; ++head) {
      if (cache->live_tokens(sequence.id, layer, head) < sequence.length) return plan::SlotId{layer, head};
    }
  }
  return {};
}

void Engine::State::close_prompt(ActiveSequence& sequence) {
  if (!sequence.open_prompt) return;
  const plan::Prefill& prefill = sequence.plan().prefill;
  if (prefill.observe == plan::Observe::last_rows) {
    throw UserError(
        fmt::format("the prefill stopped behind {} tokens, and plan '{}' observes the last {} of a prompt; prefill the "
                    "rest before a token is decoded",
                    sequence.length, sequence.plan().policy, prefill.observe_rows));
  }
  sequence.attention.end_prompt(sequence.plan(), sequence.length);
  sequence.open_prompt = false;
}

std::int64_t Engine::State::live_tokens(const ActiveSequence& sequence) const {
  const plan::ModelShape& shape = sequence.plan().shape;
  std::int64_t live = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) live += cache->live_tokens(sequence.id, layer, head);
  }
  return live / (std::int64_t{shape.layers} * shape.kv_heads);
}

void Engine::State::require_tokens(std::span<const Token> wanted) const {
  for (const Token token : wanted) {
    if (token >= 0 && token < tokenizer.size()) continue;
    throw UserError(fmt::format("token id {} is not in the vocabulary of {}; give 0 to {}", token, tokenizer.size(),
                                tokenizer.size() - 1));
  }
}

void Engine::State::observe_if_wanted() {
  const bool wanted = std::any_of(parts.begin(), parts.end(),
                                  [](const PassPart& part) { return decodes(part.kind) && part.sequence->on_sets; });
  if (wanted == observed) return;
  observed = wanted;
  if (!wanted) {
    executor->set_observer({});
    return;
  }
  executor->set_observer([this](const attention::HeadRecord& record) {
    const ActiveSequence& sequence = *parts[static_cast<std::size_t>(record.batch_index)].sequence;
    if (sequence.on_sets) sequence.on_sets(trace_of(record, sequence, shape()));
  });
}

void Engine::State::remember(ActiveSequence& sequence, std::span<const Token> appended) const {
  for (const Token token : appended) {
    const Token before = sequence.tokens.empty() ? -1 : sequence.tokens.back();
    sequence.attention.boundaries.push_back(boundaries.classify(before, token));
    sequence.tokens.push_back(token);
  }
}

exec::StepResult Engine::State::forward(const exec::StepBatch& batch) {
  passing = true;
  try {
    failures.assign(parts.size(), nullptr);
    exec::StepResult result = executor->forward(batch);
    passing = false;
    for (std::size_t i = 0; i < result.failures.size(); ++i) {
      if (!result.failures[i]) continue;
      failures[i] = result.failures[i];
      recover(parts[i], failures[i]);
    }
    return result;
  } catch (...) {
    passing = false;
    const std::exception_ptr why = std::current_exception();
    for (const PassPart& part : parts) {
      if (executor->began()) {
        recover(part, why);
      } else if (part.kind != PassKind::correct) {
        part.sequence->forget_after(static_cast<std::size_t>(part.sequence->length));
      }
    }
    throw;
  }
}

void Engine::State::recover(const PassPart& part, const std::exception_ptr& why) noexcept {
  ActiveSequence& sequence = *part.sequence;
  if (part.kind != PassKind::correct) sequence.forget_after(static_cast<std::size_t>(sequence.length));
  if (can_take_back(part)) {
    try {
      cache->truncate(sequence.id, cache->length(sequence.id) - sequence.length);
      return;
    } catch (...) {  // no room to call back what waits: broken like the rest
    }
  }
  sequence.broken = text_of(why);
}

std::span<const float> Engine::State::run_alone() {
  const std::span<const float> logits = run();
  if (failures.front()) std::rethrow_exception(failures.front());
  return logits;
}

std::size_t Engine::State::chunk_rows(const plan::Plan& plan) const {
  const auto chunk = static_cast<std::size_t>(options.prefill_chunk);
  if (!plan.prefill.sparse) return chunk;
  const auto tile = static_cast<std::size_t>(plan.prefill.tile_tokens(plan.shape.group()));
  return std::max(chunk / tile, std::size_t{1}) * tile;
}

void Engine::State::correct(ActiveSequence& sequence, std::int64_t count) {
  const std::span<const Token> all(sequence.tokens);
  const auto chunk = static_cast<std::size_t>(options.prefill_chunk);
  for (auto first = static_cast<std::size_t>(sequence.length - count); first < all.size(); first += chunk) {
    PassPart part{&sequence, all.subspan(first, std::min(chunk, all.size() - first))};
    part.kind = PassKind::correct;
    part.logits = PassPart::Logits::none;
    parts.assign(1, part);
    run_alone();
  }
}

void Engine::State::gather() {
  tokens.clear();
  rows.clear();
  output_rows.clear();
  for (const PassPart& part : parts) {
    attention::SequenceRows entry;
    entry.sequence = part.sequence->id;
    entry.program = part.sequence->program.get();
    entry.state = &part.sequence->attention;
    entry.first_row = static_cast<int>(tokens.size());
    entry.rows = static_cast<int>(part.tokens.size());
    entry.kind = part.kind;
    entry.audit = part.audit;
    entry.committed = part.committed;
    entry.position = part.sequence->length;
    entry.prompt_end = part.prompt_end;
    entry.stop = part.stop;
    if (part.kind == PassKind::correct) {
      entry.position = part.tokens.data() - part.sequence->tokens.data();
    } else {
      remember(*part.sequence, part.tokens);
    }
    rows.push_back(entry);
    tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
    const auto end = static_cast<std::int32_t>(tokens.size());
    if (part.logits == PassPart::Logits::last) output_rows.push_back(end - 1);
    if (part.logits == PassPart::Logits::all) {
      for (std::int32_t row = entry.first_row; row < end; ++row) output_rows.push_back(row);
    }
  }
  observe_if_wanted();
}

std::span<const float> Engine::State::run() {
  try {
    gather();
  } catch (...) {
    for (const PassPart& part : parts) {
      if (part.kind != PassKind::correct) part.sequence->forget_after(static_cast<std::size_t>(part.sequence->length));
    }
    throw;
  }
  const exec::StepResult result = forward({tokens, rows, output_rows});
  refuse_not_finite(result.logits);
  const auto row_bytes = static_cast<std::int64_t>(cache->shape().format.read_bytes());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    ActiveSequence& sequence = *parts[i].sequence;
    if (failures[i]) continue;
    sequence.stats.index_build_s += result.counters[i].index_build_s;
    sequence.stats.index_memory = static_cast<std::int64_t>(sequence.attention.index_memory());
    if (parts[i].kind == PassKind::correct) continue;
    sequence.length += static_cast<std::int64_t>(parts[i].tokens.size());
    sequence.logits.clear();
    sequence.open_prompt = sequence.length < parts[i].prompt_end;
    if (parts[i].kind == PassKind::prompt) continue;
    attention::ReadCounters counters = result.counters[i];
    if (parts[i].kind == PassKind::verify ||
        parts[i].kind == PassKind::draft) {  // what dense decoding would have read is known when committed
      counters.dense_k_rows = counters.dense_v_rows = 0;
    } else {
      ++sequence.steps;
    }
    const AttentionStats pass = stats_of(counters, row_bytes);
    sequence.stats += pass;
    sequence.last_bytes = pass.bytes_read;
  }
  return result.logits;
}

}  // namespace glimpse::engine
