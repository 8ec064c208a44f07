#include "glimpse/engine/ahead_pass.h"

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/finite_logits.h"

namespace glimpse::engine {

namespace {

bool verifies(const PassEntry& entry) {
  return entry.kind == attention::PassKind::verify;
}

/// Keeps of values [rows with logits, some] those of the entries that are left.
template <class T>
void keep_rows(std::span<const PassEntry> entries, std::vector<T>& values) {
  std::size_t rows = 0;
  for (const PassEntry& entry : entries) rows += entry.logits_rows();
  const std::size_t each = values.size() / rows;
  auto from = values.begin(), to = values.begin();
  for (const PassEntry& entry : entries) {
    const auto end = from + static_cast<std::ptrdiff_t>(entry.logits_rows() * each);
    if (entry.sequence != nullptr) to = std::copy(from, end, to);
    from = end;
  }
  values.erase(to, values.end());
}

}  // namespace

bool AheadPass::launch(Device& device, std::span<const PassEntry> entries) {
  check(!any(), "one pass ahead");
  rows_.clear();
  tokens_.clear();
  outputs_.clear();
  draws_.clear();
  const int leaders = leaders_of(entries);
  for (const PassEntry& entry : entries) {
    const std::int64_t position = verifies(entry) ? entry.committed : entry.sequence->length + 1;
    rows_.push_back(rows_of(entry, tokens_.size(), position));
    tokens_.insert(tokens_.end(), entry.tokens.begin(), entry.tokens.end() - 1);
    tokens_.push_back(-static_cast<std::int32_t>(rows_.size()));
    add_output_rows(entry, tokens_.size(), outputs_);
    if (leaders > 1) draws_.resize(outputs_.size(), entry.draw);
  }
  entries_.assign(entries.begin(), entries.end());
  try {
    for (const PassEntry& entry : entries) {
      if (verifies(entry)) cut_rows(*device.cache, *entry.sequence, entry.committed);
    }
    device.executor->launch({tokens_, rows_, outputs_, false, leaders, draws_});
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
    logits_.assign(result.logits.begin(), result.logits.end());
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
  keep_rows(entries_, leaders_);
  keep_rows(entries_, logits_);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].sequence == nullptr) continue;
    counters_[kept] = counters_[i];
    if (!failures_.empty()) failures_[kept] = failures_[i];
    ++kept;
  }
  exec::StepResult result;
  result.leaders = leaders_;
  result.logits = logits_;
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
