#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/prefill_observe.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/prefill.h"
#include "glimpse/kernels/cpu/prefill_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

template <KvType kType>
HWY_INLINE void lse_tile(const Tile& tile) {
  arrange_queries(tile);
  clear_sums(tile);
  for_each_key_tile(KeyWalk(tile, tile.item.begin, tile.item.end),
                    [&](const KeyTile& key_tile, const KeyTile& next) HWY_ATTR {
                      pack_keys<kType>(tile, key_tile);
                      for_each_panel<false>(tile, key_tile, next, [&](Panel panel, const Fetch& fetch) HWY_ATTR {
                        score_panel(tile, key_tile, panel, fetch);
                        hide_keys(tile, key_tile, panel);
                        take_scores<false>(tile, key_tile, panel);
                      });
                    });
  write_lse(tile);
}

/// The log-sum-exp of each lane, in powers of two as the scores are, and the weight of its row. Lanes past the last
/// and rows that saw nothing: any finite score minus inf makes a weight 0.
void arrange_lse(const Tile& tile, const float* weights) {
  std::fill(tile.space.largest, tile.space.largest + kTileLanes, -kMinusInfinity);
  std::fill(tile.space.sum, tile.space.sum + kTileLanes, 0.0F);
  for (std::size_t lane = 0; lane < tile.lanes(); ++lane) {
    const double lse = tile.item.lse[lane];
    if (lse == kMinusInfinity) continue;
    tile.space.largest[lane] = static_cast<float>(lse * 1.4426950408889634);
    tile.space.sum[lane] = weights == nullptr ? 1.0F : weights[lane / tile.group()];
  }
}

/// columns[key, lane of a vector] += what a panel's queries give to each key.
HWY_INLINE void add_columns(const Tile& tile, const KeyTile& key_tile, Panel panel) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const PrefillSpace& space = tile.space;
  for (std::size_t key = 0; key < static_cast<std::size_t>(key_tile.count); ++key) {
    auto column = hn::Load(d, space.out + key * lanes);
    for (std::size_t c = 0; c < panel.width; c += lanes) {
      const auto score = hn::Load(d, space.scores + key * panel.width + c);
      const auto share = exp2(d, hn::Sub(score, hn::Load(d, space.largest + panel.lane + c)));
      column = hn::MulAdd(share, hn::Load(d, space.sum + panel.lane + c), column);
    }
    hn::Store(column, d, space.out + key * lanes);
  }
}

template <KvType kType>
HWY_INLINE void column_tile(const Tile& tile, const ColumnSumsItem& item) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  arrange_queries(tile);
  arrange_lse(tile, item.weights);
  float* columns = tile.space.out;
  for_each_key_tile(KeyWalk(tile, item.begin, item.end), [&](const KeyTile& key_tile, const KeyTile& next) HWY_ATTR {
    pack_keys<kType>(tile, key_tile);
    const auto count = static_cast<std::size_t>(key_tile.count);
    std::fill(columns, columns + count * lanes, 0.0F);
    for_each_panel<false>(tile, key_tile, next, [&](Panel panel, const Fetch& fetch) HWY_ATTR {
      score_panel(tile, key_tile, panel, fetch);
      hide_keys(tile, key_tile, panel);
      add_columns(tile, key_tile, panel);
    });
    for (std::size_t key = 0; key < count; ++key) {
      item.sums[key_tile.slot[key] - item.begin] += hn::GetLane(hn::SumOfLanes(d, hn::Load(d, columns + key * lanes)));
    }
  });
}

Tile tile_of(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
             const Bf16Products* products) {
  return {format, item, format.type == KvType::bf16 ? products : nullptr,
          carve_prefill(workspace, static_cast<std::size_t>(format.dim))};
}

void lse_target(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                const Bf16Products* products) {
  const Tile tile = tile_of(format, item, workspace, products);
  with_kv_type(format.type, [&](auto type) HWY_ATTR { lse_tile<decltype(type)::value>(tile); });
}

void column_sums_target(const KvFormat& format, const ColumnSumsItem& item, std::span<std::byte> workspace,
                        const Bf16Products* products) {
  const Tile tile = tile_of(format, item.tile, workspace, products);
  with_kv_type(format.type, [&](auto type) HWY_ATTR { column_tile<decltype(type)::value>(tile, item); });
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(lse_target);
HWY_EXPORT(column_sums_target);

void prefill_lse_with(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                      const Bf16Products* products) {
  check_tile(format, item, workspace);
  check(item.lse != nullptr, "prefill_lse needs a place for its result");
  in_slices(format, item, [&](const PrefillItem& slice) {
    HWY_DYNAMIC_DISPATCH(lse_target)(format, slice, workspace, products);
  });
}

void prefill_lse(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace) {
  prefill_lse_with(format, item, workspace, prefill_products());
}

void prefill_column_sums_with(const KvFormat& format, const ColumnSumsItem& item, std::span<std::byte> workspace,
                              const Bf16Products* products) {
  check_tile(format, item.tile, workspace);
  check(item.tile.lse != nullptr, "prefill_column_sums needs the log-sum-exps of its rows");
  check(item.begin >= 0 && item.begin <= item.end, "prefill_column_sums got a range that ends before it begins");
  in_slices(format, item.tile, [&](const PrefillItem& slice) {
    ColumnSumsItem part = item;
    part.tile = slice;
    HWY_DYNAMIC_DISPATCH(column_sums_target)(format, part, workspace, products);
  });
}

void prefill_column_sums(const KvFormat& format, const ColumnSumsItem& item, std::span<std::byte> workspace) {
  prefill_column_sums_with(format, item, workspace, prefill_products());
}

}  // namespace glimpse::kernels
#endif
