#include "glimpse/server/watch_record.h"

#include <algorithm>
#include <utility>

#include "glimpse/server/watch_sets.h"

namespace glimpse::server {
namespace {

using engine::AttentionStats;

std::int64_t memory_of(const WatchedStep& step) {
  std::size_t bytes = sizeof step;
  for (const std::string& list : step.lists) bytes += sizeof list + list.capacity();
  for (const WatchedHead& head : step.heads) bytes += sizeof head + head.query_sets.size() * sizeof(std::int32_t);
  return static_cast<std::int64_t>(bytes);
}

/// Of the sets that came between two sums.
std::optional<double> mean_between(const AttentionStats::Mass& before, const AttentionStats::Mass& now) {
  const std::int64_t sets = now.sets - before.sets;
  if (sets <= 0) return std::nullopt;
  const double sum = now.mean * static_cast<double>(now.sets) - before.mean * static_cast<double>(before.sets);
  return std::clamp(sum / static_cast<double>(sets), 0.0, 1.0);
}

void set_coverage(WatchedStep& step, const AttentionStats& before, const AttentionStats& now) {
  double sum = 0, least = 1;
  std::int64_t known = 0, all = 0;
  for (const WatchedHead& head : step.heads) {
    if (head.tokens == WatchedHead::kAll) ++all;
    if (!head.coverage) continue;
    sum += *head.coverage;
    least = std::min(least, *head.coverage);
    ++known;
  }
  if (known > 0) {
    step.coverage_mean = sum / static_cast<double>(known);
    step.coverage_min = least;
  } else if (all == std::ssize(step.heads)) {
    step.coverage_mean = step.coverage_min = 1;
  } else {
    step.coverage_mean = mean_between(before.coverage, now.coverage);
  }
}

}  // namespace

WatchRecord::WatchRecord(WatchedRequest request) : request_(std::move(request)) {
  prompt_.reserve(request_.prompt.size());
  for (std::size_t i = 0; i < request_.prompt.size(); ++i) {
    const text::Token id = request_.prompt[i];
    std::string text = texts_.push(request_.tokenizer->piece(id, true));
    if (i + 1 == request_.prompt.size()) text += texts_.finish();
    prompt_.push_back({id, std::move(text)});
  }
}

std::int32_t WatchRecord::list(std::span<const std::int32_t> positions, std::size_t kv_head) {
  Last& last = last_[kv_head];
  if (last.place >= 0 && std::ranges::equal(last.positions, positions)) return last.place;
  last.place = WatchedHead::kNone;
  last.positions.assign(positions.begin(), positions.end());
  std::string packed = pack_positions(positions);
  const auto [place, is_new] = known_.try_emplace(packed, static_cast<std::int32_t>(open_.lists.size()));
  if (is_new) open_.lists.push_back(std::move(packed));
  return last.place = place->second;
}

void WatchRecord::note(const engine::SetTrace& trace) {
  const plan::ModelShape& shape = request_.shape;
  const auto row = static_cast<std::size_t>(trace.layer * shape.kv_heads + trace.kv_head);
  const auto kv_head = static_cast<std::size_t>(trace.kv_head);
  if (row == 0 || open_.position != trace.position) {  // a new step, or one that failed comes again
    open_ = {};
    open_.position = trace.position;
    open_.heads.resize(static_cast<std::size_t>(shape.layers * shape.kv_heads));
    known_.clear();
    last_.assign(static_cast<std::size_t>(shape.kv_heads), {});
    noted_ = 0;
  }
  WatchedHead& head = open_.heads[row];
  head = {};
  head.role = trace.role;
  head.budget = trace.budget;
  head.coverage = trace.coverage;
  for (const std::vector<std::int32_t>& set : trace.query_sets) head.query_sets.push_back(list(set, kv_head));
  std::vector<std::int32_t> together;
  const auto of = [&](std::span<const std::int32_t> own) {
    if (own.empty() && together.empty()) together = union_of_sets(trace.query_sets);
    return own.empty() ? std::span<const std::int32_t>(together) : own;
  };
  if (trace.reads_all) {
    head.tokens = WatchedHead::kAll;
    head.count = trace.position + 1;
  } else {
    const std::span<const std::int32_t> read = of(trace.tokens);
    head.tokens = list(read, kv_head);
    head.count = std::ssize(read);
  }
  if (trace.publishes) head.published = trace.publishes_all ? WatchedHead::kAll : list(of(trace.published), kv_head);
  ++noted_;
}

void WatchRecord::sets(const engine::SetTrace& trace) noexcept {
  try {
    note(trace);
  } catch (...) {  // memory is short: the step is not kept
    noted_ = -1;
  }
}

void WatchRecord::token(text::Token token) noexcept {
  try {
    WatchedToken made{token, texts_.push(request_.tokenizer->piece(token, true))};
    const std::lock_guard lock(mutex_);
    if (!reason_) answer_.push_back(std::move(made));
  } catch (...) {  // memory is short: the answer is told by its own stream
  }
}

void WatchRecord::step(const AttentionStats& so_far) noexcept {
  if (so_far.dense_steps + so_far.sparse_steps == before_.dense_steps + before_.sparse_steps) return;
  if (noted_ == 0) {  // no step of this request: what its sequence had counted before
    before_ = so_far;
    return;
  }
  try {
    close_step(so_far);
  } catch (...) {  // memory is short: the step is not kept, and what is kept goes
    const std::lock_guard lock(mutex_);
    steps_.clear();
    bytes_ = 0;
    first_step_ = made_;
  }
  before_ = so_far;
  noted_ = 0;
}

void WatchRecord::close_step(const AttentionStats& so_far) {
  const std::int64_t number = made_++;
  const bool whole = noted_ == std::ssize(open_.heads);
  std::shared_ptr<WatchedStep> step;
  if (whole) {
    set_coverage(open_, before_, so_far);
    open_.number = number;
    open_.bytes_read = so_far.bytes_read - before_.bytes_read;
    open_.index_bytes = so_far.index_bytes - before_.index_bytes;
    open_.dense_bytes = so_far.dense_bytes - before_.dense_bytes;
    open_.memory = memory_of(open_);
    step = std::make_shared<WatchedStep>(std::exchange(open_, {}));
  }
  const std::lock_guard lock(mutex_);
  if (reason_) return;  // its client left while the pass ran
  if (!whole) {
    steps_.clear();
    bytes_ = 0;
    first_step_ = made_;
    return;
  }
  bytes_ += step->memory;
  steps_.push_back(std::move(step));
  while (bytes_ > request_.most_bytes && steps_.size() > 1) {
    bytes_ -= steps_.front()->memory;
    steps_.pop_front();
    ++first_step_;
  }
}

void WatchRecord::end(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (!reason_) reason_ = reason;
}

WatchRecord::Progress WatchRecord::progress() const {
  const std::lock_guard lock(mutex_);
  return {std::ssize(answer_), first_step_, first_step_ + std::ssize(steps_), reason_};
}

std::vector<WatchedToken> WatchRecord::tokens(std::int64_t first, std::int64_t most) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t end = std::min(std::ssize(answer_), first + most);
  return first < end ? std::vector<WatchedToken>(answer_.begin() + first, answer_.begin() + end)
                     : std::vector<WatchedToken>();
}

std::shared_ptr<const WatchedStep> WatchRecord::step_at(std::int64_t number) const {
  const std::lock_guard lock(mutex_);
  const std::int64_t index = number - first_step_;
  return index >= 0 && index < std::ssize(steps_) ? steps_[static_cast<std::size_t>(index)] : nullptr;
}

}  // namespace glimpse::server
