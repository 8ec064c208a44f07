#include "glimpse/engine/pass.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "glimpse/engine/failure.h"
#include "glimpse/engine/finite_logits.h"
#include "glimpse/engine/pass_reads.h"

namespace glimpse::engine {
namespace {

using attention::PassKind;

/// True for a chunk of a prompt that only appends rows: nothing is observed, and indices are made at the prompt's end.
bool only_appends(const PassEntry& entry) {
  const plan::Prefill& prefill = entry.sequence->plan().prefill;
  const std::int64_t end = entry.sequence->length + static_cast<std::int64_t>(entry.tokens.size());
  if (entry.kind != PassKind::prompt || prefill.sparse || end >= entry.prompt_end) return false;
  return prefill.observe == plan::Observe::none ||
         (prefill.observe == plan::Observe::last_rows && end <= entry.prompt_end - prefill.observe_rows);
}

/// The tokens that gather() noted for it, which did not come into the cache or are taken out of it.
void forget_appended(const PassEntry& entry) {
  if (entry.kind != PassKind::correct) forget_tokens(*entry.sequence, entry.sequence->length);
}

/// How the rows that a pass appended or replaced came to be. The sequence has not its new length yet.
void note_made(const PassEntry& entry, bool sparse, bool alone) {
  ActiveSequence& sequence = *entry.sequence;
  const auto rows = static_cast<std::int64_t>(entry.tokens.size());
  if (entry.kind == PassKind::correct) {
    const std::int64_t begin = entry.tokens.data() - sequence.tokens.data();
    return sequence.made.correct(begin, begin + rows);
  }
  const bool whole = entry.kind == PassKind::verify || entry.kind == PassKind::dense_decode;
  const std::int64_t end = sequence.length + rows;
  sequence.made.add(sequence.length, entry.kind == PassKind::prompt
                                         ? made_chunk(sequence.plan(), end, entry.prompt_end, alone)
                                         : MadeRun{end, sparse && !whole ? Made::sparse : Made::dense});
}

}  // namespace

attention::SequenceRows rows_of(const PassEntry& entry, std::size_t first_row, std::int64_t position) {
  attention::SequenceRows rows;
  rows.sequence = entry.sequence->id;
  rows.program = entry.sequence->program.get();
  rows.state = &entry.sequence->attention;
  rows.first_row = static_cast<int>(first_row);
  rows.rows = static_cast<int>(entry.tokens.size());
  rows.kind = entry.kind;
  rows.audit = entry.audit;
  rows.committed = entry.committed;
  rows.position = position;
  rows.prompt_end = entry.prompt_end;
  rows.stop = entry.stop;
  return rows;
}

void add_output_rows(const PassEntry& entry, std::size_t end, std::vector<std::int32_t>& outputs) {
  for (std::size_t row = end - entry.logits_rows(); row < end; ++row) outputs.push_back(static_cast<std::int32_t>(row));
}

int leaders_of(std::span<const PassEntry> entries) {
  int most = 0;
  for (const PassEntry& entry : entries) {
    if (entry.logits_rows() == 0) continue;
    if (entry.leaders == 0) return 0;
    most = std::max(most, entry.leaders);
  }
  return most;
}

bool can_take_back(const PassEntry& entry) {
  return entry.kind == PassKind::verify ||
         (entry.kind != PassKind::correct && (plan::keeps_nothing(entry.sequence->plan()) || only_appends(entry)));
}

std::size_t chunk_rows(const plan::Plan& plan, int prefill_chunk) {
  const auto chunk = static_cast<std::size_t>(prefill_chunk);
  if (!plan.prefill.sparse) return chunk;
  const auto tile = static_cast<std::size_t>(plan.prefill.tile_tokens(plan.shape.group()));
  return std::max(chunk / tile, std::size_t{1}) * tile;
}

void PassRunner::gather() {
  try {
    gather_rows();
    failures_.assign(entries_.size(), nullptr);
  } catch (...) {
    for (const PassEntry& entry : entries_) forget_appended(entry);
    throw;
  }
}

void PassRunner::gather_rows() {
  tokens_.clear();
  rows_.clear();
  output_rows_.clear();
  draws_.clear();
  const bool draws = device_->executor->flies() && leaders_of(entries_) > 1;
  for (const PassEntry& entry : entries_) {
    std::int64_t position = entry.sequence->length;
    if (entry.kind == PassKind::correct) {
      position = entry.tokens.data() - entry.sequence->tokens.data();
    } else {
      note_tokens(*entry.sequence, entry.tokens, loaded_->boundaries);
    }
    rows_.push_back(rows_of(entry, tokens_.size(), position));
    tokens_.insert(tokens_.end(), entry.tokens.begin(), entry.tokens.end());
    add_output_rows(entry, tokens_.size(), output_rows_);
    if (draws) draws_.resize(output_rows_.size(), entry.draw);
  }
  record_sets();
}

void PassRunner::record_sets() {
  const bool wanted = std::any_of(entries_.begin(), entries_.end(), [](const PassEntry& entry) {
    return attention::decodes(entry.kind) && entry.sequence->on_sets;
  });
  if (wanted == recording_) return;
  recording_ = wanted;
  if (!wanted) {
    device_->executor->set_on_head({});
    return;
  }
  device_->executor->set_on_head([this](const attention::HeadRecord& record) {
    const ActiveSequence& sequence = *entries_[static_cast<std::size_t>(record.batch_index)].sequence;
    if (sequence.on_sets) sequence.on_sets(trace_of(record, sequence, loaded_->shape()));
  });
}

exec::StepBatch PassRunner::batch() const {
  const bool keeps =
      std::any_of(entries_.begin(), entries_.end(), [](const PassEntry& entry) { return entry.keeps_rows; });
  return {tokens_, rows_, output_rows_, keeps, leaders_of(entries_), draws_};
}

template <class Work>
auto PassRunner::guarded(const Work& work) {
  running_ = true;
  try {
    auto result = work();
    running_ = false;
    return result;
  } catch (...) {
    running_ = false;
    const std::exception_ptr why = std::current_exception();
    device_->executor->abandon();
    if (!ahead_.has_landed()) ahead_.clear();  // it was queued behind this one, whose entries are its own
    for (const PassEntry& entry : entries_) {
      if (device_->executor->began()) {
        recover(entry, why);
      } else {
        forget_appended(entry);
      }
    }
    throw;
  }
}

void PassRunner::recover(const PassEntry& entry, const std::exception_ptr& why) const noexcept {
  ActiveSequence& sequence = *entry.sequence;
  forget_appended(entry);
  if (can_take_back(entry)) {
    take_rows_back(*device_->cache, sequence, sequence.length);
    if (!sequence.broken) return;  // else there is no room to call back what waits: broken like the rest
  }
  sequence.broken = text_of(why);
}

void PassRunner::refuse(std::size_t number, std::int64_t row, const NotFinite* found) noexcept {
  const PassEntry& entry = entries_[number];
  failures_[number] =
      not_finite_error(*loaded_, device_->cache->shape().format.type, entry.sequence->length + row, found);
  // The runner counted the pass whose tokens are taken back.
  attention::SequenceState& counted = entry.sequence->attention;
  counted.prompt_tokens = std::min(counted.prompt_tokens, entry.sequence->length);
  if (counts_a_step(entry)) counted.take_back_step(entry.sequence->length);
  recover(entry, failures_[number]);
}

void PassRunner::refuse_not_finite(std::span<const float> logits) noexcept {
  std::size_t leader = 0;
  const auto each = static_cast<std::size_t>(leaders_of(entries_));
  for (std::size_t i = 0; i < entries_.size() && leader < leaders_.size(); ++i) {
    const std::size_t rows = entries_[i].logits_rows(), before = entries_[i].tokens.size() - rows;
    for (std::size_t row = 0; row < rows; ++row, leader += each) {
      if (leaders_[leader].token < 0 && !failures_[i]) refuse(i, static_cast<std::int64_t>(before + row), nullptr);
    }
  }
  if (logits.empty()) return;  // none were wanted, or leaders
  const std::size_t vocabulary = loaded_->vocabulary();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const PassEntry& entry = entries_[i];
    const auto own = logits.first(entry.logits_rows() * vocabulary);
    logits = logits.subspan(own.size());
    if (failures_[i]) continue;
    const auto found = first_not_finite(own, vocabulary);
    if (!found) continue;
    const auto before = static_cast<std::int64_t>(entry.tokens.size() - entry.logits_rows());
    refuse(i, before + found->row, &*found);
  }
}

void PassRunner::take_in(const PassEntry& entry, const attention::ReadCounters& counters) const {
  ActiveSequence& sequence = *entry.sequence;
  sequence.stats.index_build_s += counters.index_build_s;
  sequence.stats.index_memory = static_cast<std::int64_t>(sequence.attention.index_memory());
  note_made(entry, counters.sparse_steps > 0, entries_.size() == 1);  // the length before it
  if (entry.kind == PassKind::correct) return;
  sequence.length += static_cast<std::int64_t>(entry.tokens.size());
  sequence.logits.clear();
  sequence.open_prompt = sequence.length < entry.prompt_end;
  if (entry.kind == PassKind::prompt) return;
  attention::ReadCounters read = counters;
  if (entry.kind == PassKind::verify || entry.kind == PassKind::draft) {
    read.dense_k_rows = read.dense_v_rows = 0;  // what dense decoding would have read is known when committed
  } else {
    ++sequence.steps;
  }
  const AttentionStats pass = stats_of(read, static_cast<std::int64_t>(device_->cache->shape().format.read_bytes()));
  sequence.stats += pass;
  sequence.last_bytes = pass.bytes_read;
}

std::span<const float> PassRunner::take_result(const exec::StepResult& result) {
  leaders_.assign(result.leaders.begin(), result.leaders.end());
  drawn_.assign(result.drawn.begin(), result.drawn.end());
  for (std::size_t i = 0; i < result.failures.size(); ++i) {
    if (!result.failures[i]) continue;
    failures_[i] = result.failures[i];
    recover(entries_[i], failures_[i]);
  }
  refuse_not_finite(result.logits);
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (!failures_[i]) take_in(entries_[i], result.counters[i]);
  }
  return result.logits;
}

std::span<const float> PassRunner::run(std::span<const PassEntry> entries, const std::function<void()>& meanwhile) {
  exec::Executor& executor = *device_->executor;
  ahead_.land(*device_);
  entries_ = entries;
  gather();
  if (!meanwhile || !executor.flies()) return take_result(guarded([&] { return executor.forward(batch()); }));
  return take_result(guarded([&] {
    executor.launch(batch());
    meanwhile();
    return executor.collect();
  }));
}

void PassRunner::note_ahead() {
  for (std::size_t i = 0; i < ahead_.entries().size(); ++i) {
    const PassEntry entry = ahead_.entries()[i];
    if (entry.sequence == nullptr) continue;
    ActiveSequence& sequence = *entry.sequence;
    if (entry.tokens.back() != drawn_[i]) {
      take_back(sequence);
      continue;
    }
    if (entry.kind == PassKind::verify) {  // whose drafts have left the cache
      sequence.length = entry.committed;
      forget_tokens(sequence, entry.committed);
    }
    note_tokens(sequence, entry.tokens, loaded_->boundaries);
  }
}

std::span<const float> PassRunner::run_ahead(const std::function<void()>& meanwhile) {
  taken_ = std::exchange(ahead_, {});
  const auto left = [](const PassEntry& entry) { return entry.sequence != nullptr; };
  ahead_entries_.clear();
  std::copy_if(taken_.entries().begin(), taken_.entries().end(), std::back_inserter(ahead_entries_), left);
  entries_ = ahead_entries_;
  failures_.assign(entries_.size(), nullptr);
  return take_result(guarded([&] {
    if (taken_.has_landed()) return taken_.result();
    meanwhile();
    return device_->executor->collect();
  }));
}

void PassRunner::take_back(ActiveSequence& sequence) noexcept {
  if (!ahead_.has(sequence)) return;
  ahead_.land(*device_);
  if (ahead_.leave(sequence)) sequence.attention.take_back_step(sequence.length);
  if (sequence.broken) return;
  forget_tokens(sequence, sequence.length);
  take_rows_back(*device_->cache, sequence, sequence.length);
}

void PassRunner::open(const PassEntry& entry) {
  open_ = entry;
  entries_ = {&open_, 1};
  gather();
  guarded([&] {
    device_->executor->begin_slices(batch());
    return true;
  });
}

bool PassRunner::advance(int layers) {
  return guarded([&] { return device_->executor->run_slice(layers); });
}

std::span<const float> PassRunner::close() {
  return take_result(guarded([&] { return device_->executor->end_slices(); }));
}

std::span<const float> PassRunner::logits_of(std::size_t entry, std::size_t first, std::size_t count) {
  wanted_rows_.resize(count);
  const auto from = rows_[entry].first_row + static_cast<std::int32_t>(first);
  std::iota(wanted_rows_.begin(), wanted_rows_.end(), from);
  return device_->executor->logits_of(wanted_rows_);
}

std::span<const float> PassRunner::run_alone(const PassEntry& entry) {
  const std::span<const float> logits = run({&entry, 1});
  if (failures_.front()) std::rethrow_exception(failures_.front());
  return logits;
}

}  // namespace glimpse::engine
