#include "glimpse/attention/cpu/tier.h"

#include <algorithm>

#include "glimpse/kv/page_pool.h"

namespace glimpse::attention {
namespace {

constexpr std::int64_t kPage = kernels::kPageTokens;

void recall_set(Pass& pass, BatchEntry& entry, int layer, int head, const plan::Retention& kept) {
  SequenceState& state = *entry.rows.state;
  const kv::SequenceId sequence = entry.rows.sequence;
  auto& kept_steps = state.chosen_at[state.head(layer, head)];
  // A draft leaves no trace.
  const bool drafts = entry.rows.kind == PassKind::draft;
  auto& chosen_at = drafts ? pass.drafted_steps : kept_steps;
  if (drafts) pass.drafted_steps = kept_steps;
  const std::int64_t now = state.decode_steps;
  chosen_at.resize(static_cast<std::size_t>((entry.tokens + kPage - 1) / kPage), -1);
  const PublishedSet& set = state.sets.at({layer, head});
  if (set.everything) {
    std::fill(chosen_at.begin(), chosen_at.end(), now);
  } else {
    for (const auto& list : set.lists) {
      for (const std::int32_t position : list) chosen_at[static_cast<std::size_t>(position / kPage)] = now;
    }
  }

  // What the set lacks, and who may make room for it: the index reads no page again that it covers.
  pass.missing.clear();
  pass.evicted.clear();
  std::int64_t needed = 0, resident = 0;
  const std::int64_t covered = state.indices[state.head(layer, head)]->covered() / kPage;
  const kernels::PageId* const pages = entry.views[static_cast<std::size_t>(head)].pages;
  for (std::size_t i = 0; i < chosen_at.size(); ++i) {
    const auto page = static_cast<std::int32_t>(i);
    const bool wanted = chosen_at[i] == now;
    needed += wanted;
    if (pages[i] == kv::kNoPage) {
      if (wanted) pass.missing.push_back(page);
      continue;
    }
    ++resident;
    if (!wanted && page < covered) pass.evicted.push_back(page);
  }
  const auto recalled = static_cast<std::int64_t>(pass.missing.size());
  const std::int64_t bound = std::max(needed, plan::budget_tokens(kept.budget, entry.tokens) / kPage);
  const std::int64_t surplus =
      std::min<std::int64_t>(resident + recalled - bound, static_cast<std::int64_t>(pass.evicted.size()));
  // An audit reads every key of the layer behind this, and the verification behind a draft all of the cache.
  const bool all_follow = entry.rows.audit || drafts;
  if (surplus > 0 && !all_follow && pass.cache->may_spill(sequence)) {
    const auto colder = [&](std::int32_t a, std::int32_t b) {
      const std::int64_t x = chosen_at[static_cast<std::size_t>(a)];
      const std::int64_t y = chosen_at[static_cast<std::size_t>(b)];
      return x < y || (x == y && a < b);
    };
    std::nth_element(pass.evicted.begin(), pass.evicted.begin() + (surplus - 1), pass.evicted.end(), colder);
    pass.evicted.resize(static_cast<std::size_t>(surplus));
    pass.cache->spill(sequence, layer, head, pass.evicted);
    resident -= surplus;
  }
  pass.cache->recall(sequence, layer, head, pass.missing);
  ReadCounters& count = entry.counters;
  count.recalled_pages += recalled;
  count.recalled_bytes += recalled * 2 * static_cast<std::int64_t>(pass.cache->shape().format.page_bytes());
  count.resident_hits += needed - recalled;
  const std::int64_t tokens = std::min(entry.tokens, (resident + recalled) * kPage);
  count.resident_tokens = std::max(count.resident_tokens.value_or(0), tokens);
}

}  // namespace

/// Between a layer's searches and its attending, by one thread, because tables change.
void recall_sets(Pass& pass, int layer) {
  for (BatchEntry& entry : pass.entries()) {
    if (!entry.rows.decodes() || entry.dense) continue;
    for (int head = 0; head < pass.shape.kv_heads && !entry.failure; ++head) {
      const plan::Retention* kept = entry.head(layer, head).kept;
      if (kept == nullptr || kept->rule != plan::RetentionRule::host_tier) continue;
      pass.guarded(entry, [&] { recall_set(pass, entry, layer, head, *kept); });
    }
  }
}

}  // namespace glimpse::attention
