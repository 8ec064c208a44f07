// What the prefill kernels share: which keys a tile reads, packed a block at a time, the query vectors of the tile
// across lanes, and their products with the keys. Included once for each instruction set. No state, any thread.
//
// The tile is computed transposed: query vectors lie across lanes, so that maxima, exponentials and sums of the
// softmax need no step across lanes, and K and V are read by broadcast, without a transpose. Lanes are independent
// and blocks of keys start at fixed slots: a row's result does not depend on the tile it lands in.
#if defined(GLIMPSE_KERNELS_CPU_PREFILL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GLIMPSE_KERNELS_CPU_PREFILL_TILE_INL_H_
#undef GLIMPSE_KERNELS_CPU_PREFILL_TILE_INL_H_
#else
#define GLIMPSE_KERNELS_CPU_PREFILL_TILE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>

#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/prefill_bf16.h"
#include "glimpse/kernels/cpu/prefill_space.h"
#include "glimpse/kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
constexpr int kVectors = 3;  ///< 4 x 3 accumulators fill 16 registers, 8 x 3 fill 32

/// One call: what it is asked, and where it works.
struct Tile {
  const KvFormat& format;
  const PrefillItem& item;
  const Bf16Products* products = nullptr;  ///< null: f32 products
  PrefillSpace space{};

  const HeadView& head() const { return *item.head; }
  std::size_t dim() const { return static_cast<std::size_t>(format.dim); }
  std::size_t group() const { return static_cast<std::size_t>(item.group); }
  std::size_t lanes() const { return static_cast<std::size_t>(item.rows) * group(); }
};

/// The live keys of one block.
struct KeyBlock {
  int count = 0;
  std::array<std::int32_t, kBlockKeys> slot;
};

/// The keys that a tile sees, a block at a time: its list, then its own part. Only slots of [begin, end).
class KeyWalk {
 public:
  KeyWalk(const PrefillItem& item, std::int32_t begin, std::int32_t end)
      : positions_(item.head->positions),
        at_(std::max(begin, item.own_begin)),
        end_(std::min(end, item.first_slot + item.rows)) {
    if (item.list == nullptr) return;
    list_end_ = item.list + item.list_count;
    if (end < item.own_begin) list_end_ = std::lower_bound(item.list, list_end_, end);
    list_ = begin > 0 ? std::lower_bound(item.list, list_end_, begin) : item.list;
  }

  /// False when no key is left.
  bool next(KeyBlock& block) {
    block.count = 0;
    while (block.count == 0 && list_ != list_end_) {
      const auto* stop = list_ + std::min<std::ptrdiff_t>(kBlockKeys, list_end_ - list_);
      for (; list_ != stop; ++list_) add(block, *list_);
    }
    while (block.count == 0 && at_ < end_) {
      const std::int32_t stop = std::min(at_ + kBlockKeys, end_);
      for (; at_ < stop; ++at_) add(block, at_);
    }
    return block.count > 0;
  }

 private:
  void add(KeyBlock& block, std::int32_t slot) const {
    block.slot[static_cast<std::size_t>(block.count)] = slot;
    block.count += positions_ == nullptr || positions_[slot] >= 0;
  }

  const std::int32_t* positions_;
  const std::int32_t* list_ = nullptr;
  const std::int32_t* list_end_ = nullptr;
  std::int32_t at_, end_;
};

inline float row_scale(const KvFormat& format, const HeadView& head, std::byte* plane, std::int32_t slot) {
  float scale;
  const std::byte* scales = head.page_of(plane, slot, format) + format.scale_offset();
  std::memcpy(&scale, scales + sizeof(float) * static_cast<std::size_t>(slot & (kPageTokens - 1)), sizeof scale);
  return scale;
}

/// Values [i, i + Lanes(d)) of a row, in row order.
template <KvType kType, class D>
HWY_INLINE hn::Vec<D> load_values(D d, const std::byte* row, std::size_t i) {
  const std::byte* at = row + i * Unit<kType>::kBytes;
  if constexpr (kType == KvType::f32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(at));
  } else if constexpr (kType == KvType::f16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(at)));
  } else if constexpr (kType == KvType::bf16) {
    const hn::Rebind<std::uint16_t, D> dh;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(at));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  } else {
    const hn::Rebind<std::int8_t, D> d8;
    const hn::RebindToSigned<D> di;
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(at))));
  }
}

/// K of a block as [key, d], V (if wanted) as [d / 8, key, 8], both f32. Zero rows of K up to the next multiple of
/// kRows keys.
template <KvType kType, bool kWithValues>
void widen_block(const Tile& tile, const KeyBlock& block) {
  const hn::CappedTag<float, kChunk> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t dim = tile.dim();
  const HeadView& head = tile.head();
  const int padded = (block.count + kRows - 1) / kRows * kRows;
  const auto widen = [&](std::byte* plane, std::int32_t slot, float* to, std::size_t chunk_stride) HWY_ATTR {
    const std::byte* row = head.row_of(plane, slot, tile.format);
    auto scale = hn::Set(d, 1.0F);
    if constexpr (kType == KvType::q8_0) scale = hn::Set(d, row_scale(tile.format, head, plane, slot));
    for (std::size_t i = 0; i < dim; i += lanes) {
      auto values = load_values<kType>(d, row, i);
      if constexpr (kType == KvType::q8_0) values = hn::Mul(values, scale);
      hn::StoreU(values, d, to + i / kChunk * chunk_stride + i % kChunk);
    }
  };
  for (int key = 0; key < padded; ++key) {
    float* k = tile.space.keys + static_cast<std::size_t>(key) * dim;
    if (key >= block.count) {
      std::fill(k, k + dim, 0.0F);
      continue;
    }
    const std::int32_t slot = block.slot[static_cast<std::size_t>(key)];
    widen(head.k_plane, slot, k, kChunk);
    if constexpr (kWithValues) {
      widen(head.v_plane, slot, tile.space.values + static_cast<std::size_t>(key) * kChunk, kChunk * kBlockKeys);
    }
  }
}

/// K of a block as [key, d] bf16. Zero rows up to the next multiple of 8.
inline void pack_keys_bf16(const Tile& tile, const KeyBlock& block) {
  const std::size_t dim = tile.dim();
  auto* keys = reinterpret_cast<std::uint16_t*>(tile.space.keys);
  const int padded = (block.count + 7) / 8 * 8;
  for (int key = 0; key < padded; ++key) {
    std::uint16_t* to = keys + static_cast<std::size_t>(key) * dim;
    if (key < block.count) {
      const std::int32_t slot = block.slot[static_cast<std::size_t>(key)];
      std::memcpy(to, tile.head().row_of(tile.head().k_plane, slot, tile.format), 2 * dim);
    } else {
      std::fill(to, to + dim, std::uint16_t{0});
    }
  }
}

/// V of a block as pairs of keys [d / 8, key / 2, 8]. Zero rows up to the next multiple of 8.
inline void pack_values_bf16(const Tile& tile, const KeyBlock& block) {
  const std::size_t dim = tile.dim();
  auto* values = reinterpret_cast<std::uint32_t*>(tile.space.values);
  const int padded = (block.count + 7) / 8 * 8;
  for (int key = 0; key < padded; key += 2) {
    std::array<const std::byte*, 2> row{};
    for (int odd = 0; odd < 2 && key + odd < block.count; ++odd) {
      const std::int32_t slot = block.slot[static_cast<std::size_t>(key + odd)];
      row[static_cast<std::size_t>(odd)] = tile.head().row_of(tile.head().v_plane, slot, tile.format);
    }
    for (std::size_t i = 0; i < dim; ++i) {
      std::uint16_t low = 0;
      std::uint16_t high = 0;
      if (row[0] != nullptr) std::memcpy(&low, row[0] + 2 * i, 2);
      if (row[1] != nullptr) std::memcpy(&high, row[1] + 2 * i, 2);
      values[i / kChunk * kChunk * (kBlockKeys / 2) + static_cast<std::size_t>(key / 2) * kChunk + i % kChunk] =
          static_cast<std::uint32_t>(high) << 16 | low;
    }
  }
}

/// Lanes [lane, lane + width) of a tile, which go together.
struct Panel {
  std::size_t lane = 0, width = 0;
};

/// The panel that starts at `lane`. Four vectors are two and two: one alone would wait for its own sums.
inline Panel panel_at(const Tile& tile, std::size_t lane) {
  if (tile.products != nullptr) return {lane, kBf16Lanes};
  const std::size_t vector = hn::Lanes(Tag());
  const std::size_t left = (tile.lanes() - lane + vector - 1) / vector;
  return {lane, (left == 4 ? 2 : std::min<std::size_t>(left, kVectors)) * vector};
}

/// Calls `run` with the number of vectors of a panel as a constant.
template <class Run>
HWY_INLINE void with_vectors(std::size_t width, const Run& run) {
  const std::size_t vectors = width / hn::Lanes(Tag());
  if (vectors == 3) {
    run(std::integral_constant<int, 3>());
  } else if (vectors == 2) {
    run(std::integral_constant<int, 2>());
  } else {
    run(std::integral_constant<int, 1>());
  }
}

/// scores[key, lane] = keys[key, i] * queries[i, lane], summed over i; keys in kRows at a time.
template <int kPanelVectors>
HWY_INLINE void multiply_keys(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT queries, std::size_t dim,
                              int count, float* HWY_RESTRICT scores) {
  const Tag d;
  using V = hn::Vec<Tag>;
  const std::size_t lanes = hn::Lanes(d);
  for (int key = 0; key < count; key += kRows) {
    V sums[kRows][kPanelVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kPanelVectors; ++c) sums[r][c] = hn::Zero(d);
    }
    const float* rows = keys + static_cast<std::size_t>(key) * dim;
    for (std::size_t i = 0; i < dim; ++i) {
      V query[kPanelVectors];
      for (std::size_t c = 0; c < kPanelVectors; ++c) query[c] = hn::Load(d, queries + (i * kPanelVectors + c) * lanes);
      for (int r = 0; r < kRows; ++r) {
        const V k = hn::Set(d, rows[static_cast<std::size_t>(r) * dim + i]);
        for (int c = 0; c < kPanelVectors; ++c) sums[r][c] = hn::MulAdd(k, query[c], sums[r][c]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kPanelVectors; ++c) {
        hn::Store(sums[r][c], d, scores + static_cast<std::size_t>((key + r) * kPanelVectors + c) * lanes);
      }
    }
  }
}

/// space.scores = products of the packed keys with the queries of a panel; a whole number of steps of keys.
HWY_INLINE void score_panel(const Tile& tile, const KeyBlock& block, Panel panel) {
  const PrefillSpace& space = tile.space;
  const std::size_t dim = tile.dim();
  if (tile.products != nullptr) {
    tile.products->scores({tile.format.dim, (block.count + 7) / 8 * 8},
                          reinterpret_cast<const std::uint16_t*>(space.keys),
                          reinterpret_cast<const std::uint32_t*>(space.queries) + panel.lane * (dim / 2), space.scores);
  } else {
    with_vectors(panel.width, [&](auto vectors) HWY_ATTR {
      multiply_keys<decltype(vectors)::value>(space.keys, space.queries + panel.lane * dim, dim, block.count,
                                              space.scores);
    });
  }
}

/// Scores of keys behind a lane's limit become -inf.
HWY_INLINE void hide_keys(const Tile& tile, const KeyBlock& block, Panel panel) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto count = static_cast<std::size_t>(block.count);
  const std::int32_t* limits = tile.space.limit + panel.lane;
  // Limits ascend with the lanes: keys that the first lane sees, all see.
  std::size_t seen = count;
  while (seen > 0 && block.slot[seen - 1] > limits[0]) --seen;
  for (std::size_t key = seen; key < count; ++key) {
    for (std::size_t c = 0; c < panel.width; c += lanes) {
      float* at = tile.space.scores + key * panel.width + c;
      const auto hidden = hn::Gt(hn::Set(di, block.slot[key]), hn::Load(di, limits + c));
      hn::Store(hn::IfThenElse(hn::RebindMask(d, hidden), hn::Set(d, kMinusInfinity), hn::Load(d, at)), d, at);
    }
  }
}

/// Adds the weights of a panel's scores to its sums; `fade` tells how much the sums so far shrink. With kKeep the
/// scores become the weights.
template <bool kKeep>
HWY_INLINE void take_scores(const Tile& tile, const KeyBlock& block, Panel panel) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const PrefillSpace& space = tile.space;
  const auto count = static_cast<std::size_t>(block.count);
  for (std::size_t c = 0; c < panel.width; c += lanes) {
    const std::size_t lane = panel.lane + c;
    float* HWY_RESTRICT scores = space.scores + c;
    const auto before = hn::Load(d, space.largest + lane);
    auto largest = before;
    for (std::size_t key = 0; key < count; ++key) largest = hn::Max(largest, hn::Load(d, scores + key * panel.width));
    // A lane that has seen nothing but -inf: any finite reference makes its weights 0.
    const auto none = hn::Eq(largest, hn::Set(d, kMinusInfinity));
    const auto reference = hn::IfThenZeroElse(none, largest);
    auto sum = hn::Zero(d);
    for (std::size_t key = 0; key < count; ++key) {
      float* at = scores + key * panel.width;
      const auto weight = exp2(d, hn::Sub(hn::Load(d, at), reference));
      sum = hn::Add(sum, weight);
      if constexpr (kKeep) hn::Store(weight, d, at);
    }
    const auto fade = exp2(d, hn::Sub(before, reference));
    hn::Store(hn::MulAdd(hn::Load(d, space.sum + lane), fade, sum), d, space.sum + lane);
    hn::Store(largest, d, space.largest + lane);
    hn::Store(fade, d, space.fade + lane);
  }
}

/// Query vectors across lanes: lane r * g + j is row r, query head j. Lanes past the last are zero.
inline void arrange_queries(const Tile& tile) {
  const PrefillItem& item = tile.item;
  const std::size_t dim = tile.dim();
  const std::size_t used = tile.lanes();
  const float scale = item.scale * 1.44269504F;
  for (Panel panel = panel_at(tile, 0); panel.lane < used; panel = panel_at(tile, panel.lane + panel.width)) {
    for (std::size_t c = 0; c < panel.width; ++c) {
      const std::size_t lane = panel.lane + c;
      const std::size_t row = std::min(lane, used - 1) / tile.group();
      const float* query = item.query + row * item.query_stride + (lane < used ? lane % tile.group() : 0) * dim;
      const float factor = lane < used ? scale : 0.0F;
      if (tile.products != nullptr) {
        auto* to = reinterpret_cast<std::uint32_t*>(tile.space.queries) + panel.lane * (dim / 2) + c;
        for (std::size_t i = 0; i < dim; i += 2) {
          const std::uint32_t low = bf16_from_float(query[i] * factor);
          const std::uint32_t high = bf16_from_float(query[i + 1] * factor);
          to[i / 2 * panel.width] = high << 16 | low;
        }
      } else {
        float* to = tile.space.queries + panel.lane * dim + c;
        for (std::size_t i = 0; i < dim; ++i) to[i * panel.width] = query[i] * factor;
      }
      tile.space.limit[lane] = item.first_slot + static_cast<std::int32_t>(row);
    }
  }
}

/// Fetches the share that `panel` has of the rows of the block that comes next.
template <bool kWithValues>
HWY_INLINE void prefetch_share(const Tile& tile, const KeyBlock& next, Panel panel) {
  const HeadView& head = tile.head();
  const auto count = static_cast<std::size_t>(next.count);
  const std::size_t lanes = tile.lanes();
  const std::size_t end = std::min(count, (count * (panel.lane + panel.width) + lanes - 1) / lanes);
  for (std::size_t key = (count * panel.lane + lanes - 1) / lanes; key < end; ++key) {
    const std::byte* k = head.row_of(head.k_plane, next.slot[key], tile.format);
    const std::byte* v = head.row_of(head.v_plane, next.slot[key], tile.format);
    for (std::size_t at = 0; at < tile.format.row_bytes(); at += 64) {
      prefetch_l2(k + at);
      if constexpr (kWithValues) prefetch_l2(v + at);
    }
  }
}

/// visit(block, next) for all blocks of a walk; `next` is empty behind the last.
template <class Visit>
HWY_INLINE void for_each_block(KeyWalk walk, const Visit& visit) {
  std::array<KeyBlock, 2> blocks;
  std::size_t turn = 0;
  for (bool more = walk.next(blocks[0]); more; turn ^= 1) {
    more = walk.next(blocks[turn ^ 1]);
    visit(blocks[turn], blocks[turn ^ 1]);
  }
}

/// take(panel) for the panels that see some of a block; the next block's rows are fetched meanwhile.
template <bool kWithValues, class Take>
HWY_INLINE void for_each_panel(const Tile& tile, const KeyBlock& block, const KeyBlock& next, const Take& take) {
  for (Panel panel = panel_at(tile, 0); panel.lane < tile.lanes(); panel = panel_at(tile, panel.lane + panel.width)) {
    prefetch_share<kWithValues>(tile, next, panel);
    if (block.slot[0] <= tile.space.limit[panel.lane + panel.width - 1]) take(panel);
  }
}

/// Packs the keys of a block, and its values if wanted.
template <KvType kType, bool kWithValues>
HWY_INLINE void pack_block(const Tile& tile, const KeyBlock& block) {
  if (tile.products != nullptr) {
    pack_keys_bf16(tile, block);
    if constexpr (kWithValues) pack_values_bf16(tile, block);
  } else {
    widen_block<kType, kWithValues>(tile, block);
  }
}

/// What a panel keeps between blocks, of a tile that has read nothing.
inline void clear_sums(const Tile& tile) {
  std::fill(tile.space.sum, tile.space.sum + kTileLanes, 0.0F);
  std::fill(tile.space.largest, tile.space.largest + kTileLanes, kMinusInfinity);
}

/// item.lse from the sums.
inline void write_lse(const Tile& tile) {
  for (std::size_t lane = 0; lane < tile.lanes(); ++lane) {
    const double sum = tile.space.sum[lane];
    tile.item.lse[lane] = sum == 0
                              ? kMinusInfinity
                              : static_cast<float>((tile.space.largest[lane] + std::log2(sum)) * 0.69314718055994531);
  }
}

}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
