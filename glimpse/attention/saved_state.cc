#include "glimpse/attention/saved_state.h"

#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/index/landmarks.h"

namespace glimpse::attention {
namespace {

using plan::RetentionRule;

constexpr std::int64_t kPage = kernels::kPageTokens;

const plan::Retention* retention_of(const plan::Plan& plan, std::size_t head) {
  const int number = plan.roles[head].retention;
  return number < 0 ? nullptr : &plan.retentions[size(number)];
}

bool by_statistic(const plan::Retention* kept) {
  return kept != nullptr && plan::forgets_by_statistic(kept->rule);
}

bool forgets(const plan::Retention* kept) {
  return kept != nullptr && plan::forgets(kept->rule);
}

/// Vectors of heat that a state of the plan has.
int heat_layers(const SequenceState& state, const plan::Plan& plan) {
  return !state.heat.any() ? 0 : plan.heat.per_layer ? plan.shape.layers : 1;
}

void require_finite(const ByteReader& from, std::span<const float> values, std::string_view name) {
  const bool ok = std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  from.require(ok, name);
}

/// A prompt's stamp is infinite.
void require_statistics(const ByteReader& from, std::span<const float> values) {
  const bool ok = std::all_of(values.begin(), values.end(),
                              [](float value) { return std::isfinite(value) || value == kPromptStamp; });
  from.require(ok, "statistics");
}

/// Where a stream's gap begins: behind the sink's pages.
std::int64_t gap_begin(const plan::Retention& kept) {
  return (kept.sink + kPage - 1) / kPage * kPage;
}

void load_dropped(ByteReader& from, std::int64_t tokens, DroppedTokens& dropped) {
  const std::size_t dim = dropped.k_sum.size();  // what the plan's state has: none where nothing compensates
  dropped.k_sum = from.exactly<double>(dim, "sums of dropped keys");
  dropped.v_sum = from.exactly<double>(dim, "sums of dropped values");
  dropped.first = from.value<std::int64_t>(dropped.first, dropped.first, "the first dropped token");
  dropped.end = from.value<std::int64_t>(dropped.first, std::max(dropped.first, tokens), "the last dropped token");
}

}  // namespace

void save_state(const SequenceState& state, const plan::Plan& plan, ByteWriter& to) {
  to.value(state.prompt_tokens);
  to.value(state.decode_steps);
  for (int layer = 0; layer < heat_layers(state, plan); ++layer) to.values(state.heat.of(layer));
  for (std::size_t head = 0; head < plan.roles.size(); ++head) {
    to.values(*state.statistics[head]);
    to.values(state.chosen_at[head]);
    const DroppedTokens& dropped = state.dropped[head];
    to.values(dropped.k_sum);
    to.values(dropped.v_sum);
    to.value(dropped.first);
    to.value(dropped.end);
    if (state.indices[head] != nullptr) state.indices[head]->save(to);
  }
  for (const auto& keys : state.low_rank) {
    to.value(static_cast<std::uint8_t>(keys != nullptr));
    if (keys != nullptr) keys->save(to);
  }
}

void load_state(ByteReader& from, const StateSource& source, SequenceState& state) {
  const plan::Plan& plan = *source.plan;
  const std::int64_t tokens = source.tokens;
  state.prompt_tokens = from.value<std::int64_t>(0, tokens, "tokens of the prompt");
  state.decode_steps = from.value<std::int64_t>(0, tokens, "decoded tokens");
  const std::int64_t block = state.heat.block();
  for (int layer = 0; layer < heat_layers(state, plan); ++layer) {
    state.heat.of(layer) = from.values<float>(size((tokens + block - 1) / block), "heat");
    require_finite(from, state.heat.of(layer), "heat");
  }
  const std::int64_t pages = (tokens + kPage - 1) / kPage;
  const kv::SavedIndexLimits limits{source.format.type, tokens, state.prompt_tokens};
  for (std::size_t head = 0; head < plan.roles.size(); ++head) {
    const plan::Retention* kept = retention_of(plan, head);
    state.statistics[head].own() = from.values<float>(by_statistic(kept) ? size(tokens) : 0, "statistics");
    require_statistics(from, *state.statistics[head]);
    const bool tier = kept != nullptr && kept->rule == RetentionRule::host_tier;
    state.chosen_at[head] = from.values<std::int64_t>(tier ? size(pages) : 0, "pages of a host tier");
    for (const std::int64_t step : state.chosen_at[head]) {
      from.require(step >= -1 && step < std::max<std::int64_t>(state.decode_steps, 1), "the step of a page");
    }
    load_dropped(from, tokens, state.dropped[head]);
    // What a stream that compensates forgot is in its sums.
    from.require(state.dropped[head].k_sum.empty() || source.layouts[head].positions.empty() ||
                     gap_begin(*kept) + tokens - source.layouts[head].slots <= state.dropped[head].end,
                 "the last dropped token");
    if (state.indices[head] != nullptr) {
      state.indices[head]->load(from, limits);
      from.require(state.indices[head]->covered() <= tokens, "what an index covers");
    }
  }
  for (std::size_t layer = 0; layer < state.low_rank.size(); ++layer) {
    if (!from.flag("low-rank keys")) continue;
    const int rank = state.key_ranks[layer];
    from.require(rank > 0 && state.prompt_tokens > 0, "low-rank keys");
    state.low_rank[layer] = std::make_shared<const kv::LowRankKeys>(
        from, kv::LowRankKeys::Saved{plan.shape.kv_heads, source.format, state.prompt_tokens, rank});
  }
  from.require_end();
}

namespace {

void require_ascending(const ByteReader& from, const kv::HeadLayout& head, std::int64_t tokens) {
  std::int32_t last = -1;
  for (const std::int32_t position : head.positions) {
    if (position == -1) continue;
    from.require(position > last && position < tokens, "the position of a token");
    last = position;
  }
  from.require(!head.positions.empty() && head.positions.back() == tokens - 1, "the position of the last token");
}

/// Streams are read by arithmetic: whole pages between sink and window are gone, and nothing else.
void require_stream(const ByteReader& from, const plan::Retention& kept, const kv::HeadLayout& head,
                    std::int64_t tokens) {
  const std::int64_t first = gap_begin(kept);
  const std::int64_t gone = tokens - head.slots;
  for (std::int64_t slot = 0; slot < head.slots; ++slot) {
    from.require(head.positions[size(slot)] == (slot < first ? slot : slot + gone), "the position of a stream's token");
  }
  const std::int64_t window = std::max<std::int64_t>(1, plan::budget_tokens(kept.budget, tokens) - kept.sink);
  from.require(gone > 0 && gone % kPage == 0 && first + gone <= tokens - window, "what a stream forgot");
}

}  // namespace

void require_layouts(const ByteReader& from, const plan::Plan& plan, std::int64_t tokens,
                     std::span<const kv::HeadLayout> heads) {
  check(heads.size() == plan.roles.size(), "a layout for every head");
  const auto kv_heads = static_cast<std::size_t>(plan.shape.kv_heads);
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const plan::Retention* kept = retention_of(plan, i);
    const bool together = by_statistic(kept) && kept->per == plan::SetPer::layer;
    const std::size_t first = i / kv_heads * kv_heads;
    from.require(!together || heads[i].positions == heads[first].positions, "what heads forgot together");
    if (heads[i].positions.empty()) {
      from.require(heads[i].slots == tokens, "the slots of a head");
      continue;
    }
    from.require(forgets(kept) && heads[i].positions.size() == size(heads[i].slots) && heads[i].slots <= tokens,
                 "the slots of a head that forgets");
    require_ascending(from, heads[i], tokens);
    if (kept->rule == RetentionRule::window) require_stream(from, *kept, heads[i], tokens);
  }
}

}  // namespace glimpse::attention
