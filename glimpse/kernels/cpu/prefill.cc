#include "glimpse/kernels/cpu/prefill.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/prefill.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/limits.h"
#include "glimpse/kernels/cpu/prefill_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

/// out[i, lane] = out[i, lane] * fade[lane] + values[key, i] * weights[key, lane], summed over keys, for i in [first,
/// end), kDims at a time.
template <int kPanelVectors, std::size_t kDims>
HWY_INLINE void multiply_columns(const float* HWY_RESTRICT values, const float* HWY_RESTRICT weights, const float* fade,
                                 std::size_t first, std::size_t end, std::size_t keys, float* HWY_RESTRICT out) {
  const Tag d;
  using V = hn::Vec<Tag>;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = first; i < end; i += kDims) {
    const float* column = values + i / kChunk * kChunk * kTileKeys + i % kChunk;
    V sums[kDims][kPanelVectors];
    for (std::size_t r = 0; r < kDims; ++r) {
      for (std::size_t c = 0; c < kPanelVectors; ++c) {
        sums[r][c] = hn::Mul(hn::Load(d, out + ((i + r) * kPanelVectors + c) * lanes), hn::Load(d, fade + c * lanes));
      }
    }
    for (std::size_t key = 0; key < keys; ++key) {
      const float* at = weights + key * kPanelVectors * lanes;
      V weight[kPanelVectors];
      for (std::size_t c = 0; c < kPanelVectors; ++c) weight[c] = hn::Load(d, at + c * lanes);
      for (std::size_t r = 0; r < kDims; ++r) {
        const V v = hn::Set(d, column[r / kChunk * kChunk * kTileKeys + key * kChunk + r % kChunk]);
        for (std::size_t c = 0; c < kPanelVectors; ++c) sums[r][c] = hn::MulAdd(v, weight[c], sums[r][c]);
      }
    }
    for (std::size_t r = 0; r < kDims; ++r) {
      for (std::size_t c = 0; c < kPanelVectors; ++c) {
        hn::Store(sums[r][c], d, out + ((i + r) * kPanelVectors + c) * lanes);
      }
    }
  }
}

template <int kPanelVectors>
HWY_INLINE void multiply_values(const float* HWY_RESTRICT values, const float* HWY_RESTRICT weights, const float* fade,
                                std::size_t dim, std::size_t keys, float* HWY_RESTRICT out) {
  constexpr std::size_t kDims = kStep<kPanelVectors>;
  const std::size_t whole = dim / kDims * kDims;
  multiply_columns<kPanelVectors, kDims>(values, weights, fade, 0, whole, keys, out);
  if constexpr (kDims > kRows) multiply_columns<kPanelVectors, kRows>(values, weights, fade, whole, dim, keys, out);
}

/// Fades a panel's outputs and adds what its weights take of the values.
HWY_INLINE void add_values(const Tile& tile, const KeyTile& key_tile, Panel panel) {
  const PrefillSpace& space = tile.space;
  const Bf16Shape shape{tile.format.dim, (key_tile.count + 7) / 8 * 8, static_cast<int>(panel.width)};
  float* out = space.out + panel.lane * tile.dim();
  const float* fade = space.fade + panel.lane;
  if (tile.products != nullptr) {
    std::fill(space.scores + static_cast<std::size_t>(key_tile.count) * panel.width,
              space.scores + static_cast<std::size_t>(shape.keys) * panel.width, 0.0F);
    tile.products->values(shape, reinterpret_cast<const std::uint32_t*>(space.values), space.scores, fade, out);
  } else {
    with_vectors(panel.width, [&](auto vectors) HWY_ATTR {
      multiply_values<decltype(vectors)::value>(space.values, space.scores, fade, tile.dim(),
                                                static_cast<std::size_t>(key_tile.count), out);
    });
  }
}

void write_tile(const Tile& tile) {
  const std::size_t dim = tile.dim();
  for (Panel panel = panel_at(tile, 0); panel.lane < tile.lanes(); panel = panel_at(tile, panel.lane + panel.width)) {
    for (std::size_t lane = panel.lane; lane < std::min(panel.lane + panel.width, tile.lanes()); ++lane) {
      const float* from = tile.space.out + panel.lane * dim + (lane - panel.lane);
      float* to = tile.item.out + lane / tile.group() * tile.item.out_stride + lane % tile.group() * dim;
      const float sum = tile.space.sum[lane];
      const float inverse = sum == 0 ? 0.0F : 1.0F / sum;
      for (std::size_t i = 0; i < dim; ++i) to[i] = from[i * panel.width] * inverse;
    }
  }
}

template <KvType kType>
HWY_INLINE void prefill_tile(const Tile& tile) {
  arrange_queries(tile);
  clear_sums(tile);
  std::fill(tile.space.out, tile.space.out + kTileLanes * tile.dim(), 0.0F);
  for_each_key_tile(KeyWalk(tile, tile.item.begin, tile.item.end),
                    [&](const KeyTile& key_tile, const KeyTile& next) HWY_ATTR {
                      pack_keys<kType>(tile, key_tile);
                      bool packed = false;
                      for_each_panel<true>(tile, key_tile, next, [&](Panel panel, const Fetch& fetch) HWY_ATTR {
                        score_panel(tile, key_tile, panel, fetch);
                        hide_keys(tile, key_tile, panel);
                        take_scores<true>(tile, key_tile, panel);
                        // Not before: K and V of a key tile together are more than the first cache holds.
                        if (!packed) pack_values<kType>(tile, key_tile);
                        packed = true;
                        add_values(tile, key_tile, panel);
                      });
                    });
  write_tile(tile);
  if (tile.item.lse != nullptr) write_lse(tile);
}

void prefill_target(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                    const Bf16Products* products) {
  const Tile tile{format, item, format.type == KvType::bf16 ? products : nullptr,
                  carve_prefill(workspace, static_cast<std::size_t>(format.dim))};
  with_kv_type(format.type, [&](auto type) HWY_ATTR { prefill_tile<decltype(type)::value>(tile); });
}

/// Only beside AVX-512: a process held to another instruction set gets f32 products.
const Bf16Products* products_target() {
  return HWY_TARGET == HWY_AVX3 ? bf16_products() : nullptr;
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(prefill_target);
HWY_EXPORT(products_target);

int prefill_tile_rows(int group) {
  return std::max(1, kTileLanes / group);
}

std::size_t prefill_workspace(const KvFormat& format, int /*group*/) {
  return prefill_floats(static_cast<std::size_t>(format.dim)) * sizeof(float) + 64;
}

void check_tile(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace) {
  check_queries(format, item.group);
  check(item.rows >= 1 && item.rows <= prefill_tile_rows(item.group), "prefill got more rows than a tile takes");
  check(item.own_begin >= 0 && item.own_begin <= item.first_slot, "prefill got a tile that starts in its own part");
  check(item.begin >= 0 && item.begin <= item.end, "prefill got a range that ends before it begins");
  check(item.list_count == 0 || (item.list != nullptr && item.list[item.list_count - 1] < item.own_begin),
        "prefill got a list that reaches into the tile's own part");
  check(workspace.size() >= prefill_workspace(format, item.group), "prefill needs more workspace");
}

const Bf16Products* prefill_products() {
  return HWY_DYNAMIC_DISPATCH(products_target)();
}

void prefill_with(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                  const Bf16Products* products) {
  check_tile(format, item, workspace);
  in_slices(format, item, [&](const PrefillItem& slice) {
    HWY_DYNAMIC_DISPATCH(prefill_target)(format, slice, workspace, products);
  });
}

void prefill(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace) {
  prefill_with(format, item, workspace, prefill_products());
}

}  // namespace glimpse::kernels
#endif
