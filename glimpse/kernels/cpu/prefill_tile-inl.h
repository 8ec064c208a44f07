// What the prefill kernels share: which keys a tile reads, packed a key tile at a time, the query vectors of the tile
// across lanes, and their products with the keys. Included once for each instruction set. Nothing is kept, any thread.
//
// The tile is computed transposed: query vectors lie across lanes, so that maxima, exponentials and sums of the
// softmax need no step across lanes, and K and V are read by broadcast, without a transpose. Lanes are independent
// and tiles of keys start at fixed slots: a row's result does not depend on the tile it lands in.
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
/// Keys (or dimensions) of one register tile. A panel of one vector has one chain of sums for each: kRows chains would
/// not cover the latency of a multiply-add.
template <int kPanelVectors>
constexpr int kStep = kPanelVectors == 1 ? 2 * kRows : kRows;
constexpr int kLongestStep = kStep<1>;
static_assert(kTileKeys % kLongestStep == 0);
static_assert(kVectors * kBf16Vector == kBf16Lanes);

/// One call: what it is asked, and where it works.
struct Tile {
  const KvFormat& format;
  const PrefillItem& item;
  const Bf16Products* products = nullptr;  ///< null: f32 products
  PrefillSpace space{};

  const HeadView& head() const { return *item.head; }
  /// Bytes from a row of K to its row of V.
  std::ptrdiff_t to_values() const { return head().v_plane - head().k_plane; }
  std::size_t dim() const { return static_cast<std::size_t>(format.dim); }
  std::size_t group() const { return static_cast<std::size_t>(item.group); }
  std::size_t lanes() const { return static_cast<std::size_t>(item.rows) * group(); }
};

/// The live keys of one key tile, and where their rows of K lie.
struct KeyTile {
  int count = 0;
  std::array<std::int32_t, kTileKeys> slot;
  std::array<const std::byte*, kTileKeys> row;
};

/// Rows of K to prefetch and, unless `values` is 0, the rows of V that lie `values` bytes from them.
struct Fetch {
  const std::byte* const* rows = nullptr;
  int count = 0;
  std::ptrdiff_t values = 0;
  std::size_t bytes = 0;
  std::size_t at = 0;  ///< bytes of the first row already fetched

  int lines() const { return count * static_cast<int>((bytes + 63) / 64); }

  /// Fetches the next lines of K, and of V.
  HWY_INLINE void next(int many) {
    for (; many > 0 && count > 0; --many) {
      prefetch_l2(*rows + at);
      if (values != 0) prefetch_l2(*rows + values + at);
      at += 64;
      if (at < bytes) continue;
      at = 0;
      ++rows;
      --count;
    }
  }
};

/// The keys that a tile sees, a key tile at a time: its list, then its own part. Only slots of [begin, end).
class KeyWalk {
 public:
  KeyWalk(const Tile& tile, std::int32_t begin, std::int32_t end)
      : format_(tile.format),
        head_(tile.head()),
        at_(std::max(begin, tile.item.own_begin)),
        end_(std::min(end, tile.item.first_slot + tile.item.rows)) {
    const PrefillItem& item = tile.item;
    if (item.list == nullptr) return;
    list_end_ = item.list + item.list_count;
    if (end < item.own_begin) list_end_ = std::lower_bound(item.list, list_end_, end);
    list_ = begin > 0 ? std::lower_bound(item.list, list_end_, begin) : item.list;
  }

  /// False when no key is left.
  bool next(KeyTile& key_tile) {
    key_tile.count = 0;
    while (key_tile.count == 0 && list_ != list_end_) {
      const auto* stop = list_ + std::min<std::ptrdiff_t>(kTileKeys, list_end_ - list_);
      for (; list_ != stop; ++list_) add(key_tile, *list_);
    }
    while (key_tile.count == 0 && at_ < end_) {
      const std::int32_t stop = std::min(at_ + kTileKeys, end_);
      for (; at_ < stop; ++at_) add(key_tile, at_);
    }
    return key_tile.count > 0;
  }

 private:
  void add(KeyTile& key_tile, std::int32_t slot) const {
    const auto at = static_cast<std::size_t>(key_tile.count);
    key_tile.slot[at] = slot;
    key_tile.row[at] = head_.row_of(head_.k_plane, slot, format_);
    key_tile.count += head_.positions == nullptr || head_.positions[slot] >= 0;
  }

  const KvFormat& format_;
  const HeadView& head_;
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

/// A row as floats: values [i, i + 8) at to + i / 8 * chunk_stride.
template <KvType kType, class D>
HWY_INLINE void widen_row(D d, const std::byte* row, std::size_t dim, float scale, float* HWY_RESTRICT to,
                          std::size_t chunk_stride) {
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < dim; i += lanes) {
    auto values = load_values<kType>(d, row, i);
    if constexpr (kType == KvType::q8_0) values = hn::Mul(values, hn::Set(d, scale));
    hn::StoreU(values, d, to + i / kChunk * chunk_stride + i % kChunk);
  }
}

/// K of a key tile as [key, d] floats. Zero rows up to the next multiple of kLongestStep keys.
template <KvType kType>
void widen_keys(const Tile& tile, const KeyTile& key_tile) {
  const Tag wide;
  const hn::CappedTag<float, kChunk> narrow;
  const std::size_t dim = tile.dim();
  const HeadView& head = tile.head();
  const auto count = static_cast<std::size_t>(key_tile.count);
  const auto padded = (count + kLongestStep - 1) / kLongestStep * kLongestStep;
  const bool whole = dim % hn::Lanes(wide) == 0;
  for (std::size_t key = 0; key < count; ++key) {
    const float scale = kType == KvType::q8_0 ? row_scale(tile.format, head, head.k_plane, key_tile.slot[key]) : 1.0F;
    float* to = tile.space.keys + key * dim;
    if (whole) {
      widen_row<kType>(wide, key_tile.row[key], dim, scale, to, kChunk);
    } else {
      widen_row<kType>(narrow, key_tile.row[key], dim, scale, to, kChunk);
    }
  }
  std::fill(tile.space.keys + count * dim, tile.space.keys + padded * dim, 0.0F);
}

/// V of a key tile as [d / 8, key, 8] floats.
template <KvType kType>
void widen_values(const Tile& tile, const KeyTile& key_tile) {
  const hn::CappedTag<float, kChunk> narrow;
  const HeadView& head = tile.head();
  for (std::size_t key = 0; key < static_cast<std::size_t>(key_tile.count); ++key) {
    const float scale = kType == KvType::q8_0 ? row_scale(tile.format, head, head.v_plane, key_tile.slot[key]) : 1.0F;
    widen_row<kType>(narrow, key_tile.row[key] + tile.to_values(), tile.dim(), scale, tile.space.values + key * kChunk,
                     kChunk * kTileKeys);
  }
}

/// K of a key tile as [key, d] bf16. Zero rows up to the next multiple of 8.
inline void pack_keys_bf16(const Tile& tile, const KeyTile& key_tile) {
  const std::size_t dim = tile.dim();
  auto* keys = reinterpret_cast<std::uint16_t*>(tile.space.keys);
  const int padded = (key_tile.count + 7) / 8 * 8;
  for (int key = 0; key < padded; ++key) {
    std::uint16_t* to = keys + static_cast<std::size_t>(key) * dim;
    if (key < key_tile.count) {
      std::memcpy(to, key_tile.row[static_cast<std::size_t>(key)], 2 * dim);
    } else {
      std::fill(to, to + dim, std::uint16_t{0});
    }
  }
}

/// V of a key tile as pairs of keys [d / 8, key / 2, 8]. Zero rows up to the next multiple of 8.
HWY_INLINE void pack_values_bf16(const Tile& tile, const KeyTile& key_tile) {
  const hn::CappedTag<std::uint16_t, kChunk> d;
  const std::size_t dim = tile.dim();
  const std::size_t lanes = hn::Lanes(d);
  auto* values = reinterpret_cast<std::uint16_t*>(tile.space.values);
  const int padded = (key_tile.count + 7) / 8 * 8;
  const auto row_of = [&](int key) {
    return reinterpret_cast<const std::uint16_t*>(key_tile.row[static_cast<std::size_t>(key)] + tile.to_values());
  };
  for (int key = 0; key < padded; key += 2) {
    std::uint16_t* to = values + static_cast<std::size_t>(key) * kChunk;
    const std::uint16_t* even = key < key_tile.count ? row_of(key) : nullptr;
    const std::uint16_t* odd = key + 1 < key_tile.count ? row_of(key + 1) : nullptr;
    for (std::size_t i = 0; i < dim; i += lanes) {
      const auto low = even != nullptr ? hn::LoadU(d, even + i) : hn::Zero(d);
      const auto high = odd != nullptr ? hn::LoadU(d, odd + i) : hn::Zero(d);
      hn::StoreInterleaved2(low, high, d, to + i / kChunk * kChunk * kTileKeys + 2 * (i % kChunk));
    }
  }
}

/// Lanes [lane, lane + width) of a tile, which go together.
struct Panel {
  std::size_t lane = 0, width = 0;
};

/// The panel that starts at `lane`. Four vectors are two and two: one alone loads a value of K for each product.
inline Panel panel_at(const Tile& tile, std::size_t lane) {
  const std::size_t vector = tile.products != nullptr ? kBf16Vector : hn::Lanes(Tag());
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

/// scores[key, lane] = keys[key, i] * queries[i, lane], summed over i; keys in kStep at a time. kDim: the dimension, 0
/// for any; when known, row offsets are constants and need no registers.
template <int kPanelVectors, std::size_t kDim>
HWY_INLINE void multiply_keys(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT queries, std::size_t any_dim,
                              int count, Fetch fetch, float* HWY_RESTRICT scores) {
  const std::size_t dim = kDim > 0 ? kDim : any_dim;
  const Tag d;
  using V = hn::Vec<Tag>;
  constexpr int kKeys = kStep<kPanelVectors>;
  const std::size_t lanes = hn::Lanes(d);
  // Spread over all products: more at once than the core has miss buffers for would hold it up.
  constexpr std::size_t kDims = 8;
  const int turns = (count + kKeys - 1) / kKeys * static_cast<int>(dim / kDims);
  const int share = (fetch.lines() + turns - 1) / turns;
  for (int key = 0; key < count; key += kKeys) {
    V sums[kKeys][kPanelVectors];
    for (int r = 0; r < kKeys; ++r) {
      for (int c = 0; c < kPanelVectors; ++c) sums[r][c] = hn::Zero(d);
    }
    const float* rows = keys + static_cast<std::size_t>(key) * dim;
    for (std::size_t i = 0; i < dim; ++i) {
      if (i % kDims == 0) fetch.next(share);
      V query[kPanelVectors];
      for (std::size_t c = 0; c < kPanelVectors; ++c) query[c] = hn::Load(d, queries + (i * kPanelVectors + c) * lanes);
      for (int r = 0; r < kKeys; ++r) {
        const V k = hn::Set(d, rows[static_cast<std::size_t>(r) * dim + i]);
        for (int c = 0; c < kPanelVectors; ++c) sums[r][c] = hn::MulAdd(k, query[c], sums[r][c]);
      }
    }
    for (int r = 0; r < kKeys; ++r) {
      for (int c = 0; c < kPanelVectors; ++c) {
        hn::Store(sums[r][c], d, scores + static_cast<std::size_t>((key + r) * kPanelVectors + c) * lanes);
      }
    }
  }
}

/// space.scores = products of the packed keys with the queries of a panel; a whole number of steps of keys. Fetches
/// what it is told to meanwhile.
HWY_INLINE void score_panel(const Tile& tile, const KeyTile& key_tile, Panel panel, Fetch fetch) {
  const PrefillSpace& space = tile.space;
  const std::size_t dim = tile.dim();
  if (tile.products != nullptr) {
    fetch.next(fetch.lines());
    tile.products->scores({tile.format.dim, (key_tile.count + 7) / 8 * 8, static_cast<int>(panel.width)},
                          reinterpret_cast<const std::uint16_t*>(space.keys),
                          reinterpret_cast<const std::uint32_t*>(space.queries) + panel.lane * (dim / 2), space.scores);
  } else {
    with_vectors(panel.width, [&](auto vectors) HWY_ATTR {
      constexpr int kPanelVectors = decltype(vectors)::value;
      const float* queries = space.queries + panel.lane * dim;
      if (dim == 64) {
        multiply_keys<kPanelVectors, 64>(space.keys, queries, dim, key_tile.count, fetch, space.scores);
      } else if (dim == 128) {
        multiply_keys<kPanelVectors, 128>(space.keys, queries, dim, key_tile.count, fetch, space.scores);
      } else {
        multiply_keys<kPanelVectors, 0>(space.keys, queries, dim, key_tile.count, fetch, space.scores);
      }
    });
  }
}

/// Scores of keys behind a lane's limit become -inf.
HWY_INLINE void hide_keys(const Tile& tile, const KeyTile& key_tile, Panel panel) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto count = static_cast<std::size_t>(key_tile.count);
  const std::int32_t* limits = tile.space.limit + panel.lane;
  // Limits ascend with the lanes: keys that the first lane sees, all see.
  std::size_t seen = count;
  while (seen > 0 && key_tile.slot[seen - 1] > limits[0]) --seen;
  for (std::size_t key = seen; key < count; ++key) {
    for (std::size_t c = 0; c < panel.width; c += lanes) {
      float* at = tile.space.scores + key * panel.width + c;
      const auto hidden = hn::Gt(hn::Set(di, key_tile.slot[key]), hn::Load(di, limits + c));
      hn::Store(hn::IfThenElse(hn::RebindMask(d, hidden), hn::Set(d, kMinusInfinity), hn::Load(d, at)), d, at);
    }
  }
}

/// Adds the weights of a panel's scores to its sums; `fade` tells how much the sums so far shrink. With kKeep the
/// scores become the weights.
template <bool kKeep>
HWY_INLINE void take_scores(const Tile& tile, const KeyTile& key_tile, Panel panel) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const PrefillSpace& space = tile.space;
  const auto count = static_cast<std::size_t>(key_tile.count);
  for (std::size_t c = 0; c < panel.width; c += lanes) {
    const std::size_t lane = panel.lane + c;
    float* HWY_RESTRICT scores = space.scores + c;
    const auto before = hn::Load(d, space.largest + lane);
    auto largest = before;
    auto other = before;
    std::size_t at_key = 0;
    for (; at_key + 2 <= count; at_key += 2) {
      largest = hn::Max(largest, hn::Load(d, scores + at_key * panel.width));
      other = hn::Max(other, hn::Load(d, scores + (at_key + 1) * panel.width));
    }
    if (at_key < count) largest = hn::Max(largest, hn::Load(d, scores + at_key * panel.width));
    largest = hn::Max(largest, other);
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

/// The share that `panel` has of the rows of the key tile that comes next.
template <bool kWithValues>
HWY_INLINE Fetch fetch_share(const Tile& tile, const KeyTile& next, Panel panel) {
  const auto count = static_cast<std::size_t>(next.count);
  const std::size_t lanes = tile.lanes();
  const std::size_t begin = (count * panel.lane + lanes - 1) / lanes;
  const std::size_t end = std::min(count, (count * (panel.lane + panel.width) + lanes - 1) / lanes);
  return {next.row.data() + begin, static_cast<int>(end - begin), kWithValues ? tile.to_values() : 0,
          tile.format.row_bytes()};
}

/// visit(key_tile, next) for all of a walk; `next` is empty behind the last.
template <class Visit>
HWY_INLINE void for_each_key_tile(KeyWalk walk, const Visit& visit) {
  std::array<KeyTile, 2> key_tiles;
  std::size_t turn = 0;
  for (bool more = walk.next(key_tiles[0]); more; turn ^= 1) {
    more = walk.next(key_tiles[turn ^ 1]);
    visit(key_tiles[turn], key_tiles[turn ^ 1]);
  }
}

/// take(panel, fetch) for the panels that see some of a key tile; what it shall fetch meanwhile is of the next. The
/// share of a panel that sees nothing stays unfetched: that is in the last key tiles of large tiles alone.
template <bool kWithValues, class Take>
HWY_INLINE void for_each_panel(const Tile& tile, const KeyTile& key_tile, const KeyTile& next, const Take& take) {
  for (Panel panel = panel_at(tile, 0); panel.lane < tile.lanes(); panel = panel_at(tile, panel.lane + panel.width)) {
    if (key_tile.slot[0] > tile.space.limit[panel.lane + panel.width - 1]) continue;
    take(panel, fetch_share<kWithValues>(tile, next, panel));
  }
}

template <KvType kType>
HWY_INLINE void pack_keys(const Tile& tile, const KeyTile& key_tile) {
  if (tile.products != nullptr) {
    pack_keys_bf16(tile, key_tile);
  } else {
    widen_keys<kType>(tile, key_tile);
  }
}

template <KvType kType>
HWY_INLINE void pack_values(const Tile& tile, const KeyTile& key_tile) {
  if (tile.products != nullptr) {
    pack_values_bf16(tile, key_tile);
  } else {
    widen_values<kType>(tile, key_tile);
  }
}

/// What a panel keeps between key tiles, of a tile that has read nothing.
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
