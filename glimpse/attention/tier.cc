#include "glimpse/attention/tier.h"

#include <algorithm>
#include <bit>

namespace glimpse::attention {
namespace {

constexpr std::int64_t kPage = kernels::kPageTokens;
constexpr std::int32_t kBits = 64;

}  // namespace

void TierStep::begin(const kv::Cache& cache, const SequenceRows& rows, plan::SlotId head,
                     std::vector<std::int64_t>& chosen_at) {
  cache_ = &cache;
  rows_ = &rows;
  head_ = head;
  chosen_at_ = &chosen_at;
  now_ = rows.state->decode_steps;
  tokens_ = rows.position + rows.rows;
  chosen_at.resize(static_cast<std::size_t>((tokens_ + kPage - 1) / kPage), -1);
  waiting_ = cache.waiting_bits(rows.sequence, head.layer, head.head);
  needed_ = 0;
  missing_.clear();
  evicted_.clear();
}

bool TierStep::waits(std::int32_t page) const {
  const auto word = static_cast<std::size_t>(page / kBits);
  return word < waiting_.size() && (waiting_[word] >> (page % kBits) & 1) != 0;
}

void TierStep::take_page(std::int32_t page) {
  std::int64_t& chosen = (*chosen_at_)[static_cast<std::size_t>(page)];
  if (chosen == now_) return;
  chosen = now_;
  ++needed_;
  if (waits(page)) missing_.push_back({head_.layer, head_.head, page});
}

void TierStep::take(std::span<const std::int32_t> positions) {
  std::int32_t last = -1;
  for (const std::int32_t position : positions) {
    const std::int32_t page = position / static_cast<std::int32_t>(kPage);
    if (page != last) take_page(page);
    last = page;
  }
}

void TierStep::take_everything() {
  for (std::int32_t page = 0; page < static_cast<std::int32_t>(chosen_at_->size()); ++page) take_page(page);
}

void TierStep::end() {
  const std::int64_t waiting = cache_->waiting_pages(rows_->sequence, head_.layer, head_.head);
  resident_ = static_cast<std::int64_t>(chosen_at_->size()) - waiting + static_cast<std::int64_t>(missing_.size());
  const plan::Budget& budget = rows_->program->head(head_.layer, head_.head).kept->budget;
  const std::int64_t surplus = resident_ - std::max(needed_, plan::budget_tokens(budget, tokens_) / kPage);
  // An audit reads every key of the layer behind this, and the verification behind a draft all of the cache.
  const bool all_follow = rows_->audit || rows_->kind == PassKind::draft;
  if (surplus > 0 && !all_follow && cache_->may_spill(rows_->sequence)) choose_evicted(surplus);
}

void TierStep::choose_evicted(std::int64_t surplus) {
  // The index reads no page again that it covers.
  const SequenceState& state = *rows_->state;
  const auto covered = static_cast<std::int32_t>(state.indices[state.head(head_.layer, head_.head)]->covered() / kPage);
  const std::vector<std::int64_t>& chosen_at = *chosen_at_;
  for (std::int32_t first = 0; first < covered; first += kBits) {
    const auto word = static_cast<std::size_t>(first / kBits);
    std::uint64_t here = word < waiting_.size() ? ~waiting_[word] : ~std::uint64_t{0};
    for (; here != 0; here &= here - 1) {
      const std::int32_t page = first + std::countr_zero(here);
      if (page >= covered) break;
      if (chosen_at[static_cast<std::size_t>(page)] == now_) continue;
      evicted_.push_back({head_.layer, head_.head, page});
    }
  }
  surplus = std::min(surplus, static_cast<std::int64_t>(evicted_.size()));
  if (surplus == 0) return;
  const auto colder = [&](const kv::HeadPage& a, const kv::HeadPage& b) {
    const std::int64_t x = chosen_at[static_cast<std::size_t>(a.page)];
    const std::int64_t y = chosen_at[static_cast<std::size_t>(b.page)];
    return x < y || (x == y && a.page < b.page);
  };
  std::nth_element(evicted_.begin(), evicted_.begin() + (surplus - 1), evicted_.end(), colder);
  evicted_.resize(static_cast<std::size_t>(surplus));
  resident_ -= surplus;
}

void TierStep::count(ReadCounters& counters) const {
  const auto recalled = static_cast<std::int64_t>(missing_.size());
  counters.recalled_pages += recalled;
  counters.recalled_bytes += recalled * 2 * static_cast<std::int64_t>(cache_->shape().format.page_bytes());
  counters.resident_hits += needed_ - recalled;
  counters.resident_tokens = std::max(counters.resident_tokens.value_or(0), std::min(tokens_, resident_ * kPage));
}

}  // namespace glimpse::attention
