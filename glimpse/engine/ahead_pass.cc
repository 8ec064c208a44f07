#include "glimpse/engine/ahead_pass.h"

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/finite_logits.h"

namespace glimpse::engine {

namespace {

bool verifies(const PassEntry& entry) {
  return entry.kind == attention::PassKind::verify;
}

/// Of each row of logits [rows, vocabulary]; the token of one that is not finite is -1.
void take_largest(std::span<const float> logits, std::size_t rows, std::vector<exec::Leader>& leaders) {
  const std::size_t vocabulary = logits.size() / rows;
  for (std::size_t row = 0; row < rows; ++row) {
    const auto own = logits.subspan(row * vocabulary, vocabulary);
    const auto best = std::max_element(own.begin(), own.end());
    const bool finite = !first_not_finite(own, vocabulary);
    leaders.push_back({finite ? static_cast<std::int32_t>(best - own.begin()) : -1, *best});
  }
}

}  // namespace

bool AheadPass::launch(Device& device, std::span<const PassEntry> entries) {
  check(!any(), "one pass ahead");
  rows_.clear();
  tokens_.clear();
  outputs_.clear();
  for (const PassEntry& entry : entries) {
    ActiveSequence& sequence = *entry.sequence;
    attention::SequenceRows rows;
    rows.sequence = sequence.id;
    rows.program = sequence.program.get();
    rows.state = &sequence.attention;
    rows.first_row = static_cast<int>(tokens_.size());
    rows.rows = static_cast<int>(entry.tokens.size());
    rows.kind = entry.kind;
    rows.committed = entry.committed;
    rows.position = verifies(entry) ? entry.committed : sequence.length + 1;
    tokens_.insert(tokens_.end(), entry.tokens.begin(), entry.tokens.end() - 1);
    tokens_.push_back(-1 - static_cast<std::int32_t>(rows_.size()));
    const auto end = static_cast<std::int32_t>(tokens_.size());
    for (auto row = end - static_cast<std::int32_t>(entry.logits_rows()); row < end; ++row) outputs_.push_back(row);
    rows_.push_back(rows);
  }
  entries_.assign(entries.begin(), entries.end());
  try {
    for (const PassEntry& entry : entries) {
      if (verifies(entry)) cut_rows(*device.cache, *entry.sequence, entry.committed);
    }
    device.executor->launch({tokens_, rows_, outputs_, false, 1});
  } catch (const UserError&) {
    for (const PassEntry& entry : entries) take_rows_back(*device.cache, *entry.sequence, entry.sequence->length + 1);
    clear();
    return false;
  } catch (...) {
    clear();
    throw;
  }
  flies_ = true;
  return true;
}

void AheadPass::land(Device& device) noexcept {
  if (!flies_) return;
  flies_ = false;
  failure_ = nullptr;
  try {
    const exec::StepResult result = device.executor->collect();
    leaders_.assign(result.leaders.begin(), result.leaders.end());
    if (leaders_.empty()) take_largest(result.logits, outputs_.size(), leaders_);
    counters_.assign(result.counters.begin(), result.counters.end());
    failures_ = result.failures;
  } catch (...) {
    failure_ = std::current_exception();
    for (const PassEntry& entry : entries_) {
      if (entry.sequence != nullptr) take_rows_back(*device.cache, *entry.sequence, entry.sequence->length);
    }
  }
}

bool AheadPass::has(const ActiveSequence& sequence) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const PassEntry& entry) { return entry.sequence == &sequence; });
}

bool AheadPass::leave(const ActiveSequence& sequence) {
  check(has_landed(), "a pass that has landed");
  bool counted = false, others = false;
  for (PassEntry& entry : entries_) {
    if (entry.sequence == &sequence) {
      entry.sequence = nullptr;
      counted = !failure_ && counts_a_step(entry);
    } else if (entry.sequence != nullptr) {
      others = true;
    }
  }
  if (!others) clear();
  return counted;
}

exec::StepResult AheadPass::result() {
  check(has_landed(), "a pass that has landed");
  if (failure_) std::rethrow_exception(failure_);
  std::size_t kept = 0, row = 0, kept_rows = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const std::size_t end = row + entries_[i].logits_rows();
    if (entries_[i].sequence == nullptr) {
      row = end;
      continue;
    }
    while (row < end) leaders_[kept_rows++] = leaders_[row++];
    counters_[kept] = counters_[i];
    if (!failures_.empty()) failures_[kept] = failures_[i];
    ++kept;
  }
  exec::StepResult result;
  result.leaders = std::span(leaders_).first(kept_rows);
  result.counters = std::span(counters_).first(kept);
  if (!failures_.empty())
    result.failures.assign(failures_.begin(), failures_.begin() + static_cast<std::ptrdiff_t>(kept));
  return result;
}

void AheadPass::clear() {
  entries_.clear();
  flies_ = false;
  failure_ = nullptr;
}

}  // namespace glimpse::engine
