#include "glimpse/engine/ahead_pass.h"

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/finite_logits.h"

namespace glimpse::engine {

namespace {

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
    const auto number = static_cast<std::int32_t>(rows_.size());
    attention::SequenceRows rows;
    rows.sequence = entry.sequence->id;
    rows.program = entry.sequence->program.get();
    rows.state = &entry.sequence->attention;
    rows.first_row = number;
    rows.rows = 1;
    rows.position = entry.sequence->length + 1;
    rows_.push_back(rows);
    tokens_.push_back(-1 - number);
    outputs_.push_back(number);
  }
  entries_.assign(entries.begin(), entries.end());
  try {
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
    if (leaders_.empty()) take_largest(result.logits, entries_.size(), leaders_);
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
  bool left = false, others = false;
  for (PassEntry& entry : entries_) {
    if (entry.sequence == &sequence) {
      entry.sequence = nullptr;
      left = true;
    } else if (entry.sequence != nullptr) {
      others = true;
    }
  }
  const bool counted = left && !failure_;
  if (!others) clear();
  return counted;
}

exec::StepResult AheadPass::result() {
  check(has_landed(), "a pass that has landed");
  if (failure_) std::rethrow_exception(failure_);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].sequence == nullptr) continue;
    leaders_[kept] = leaders_[i];
    counters_[kept] = counters_[i];
    if (!failures_.empty()) failures_[kept] = failures_[i];
    ++kept;
  }
  exec::StepResult result;
  result.leaders = std::span(leaders_).first(kept);
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
