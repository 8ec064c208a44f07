// Few rows of one sequence over the same keys. Each gets the bits that `attend` gives it alone, and they share what
// alone each would do again: reading a row, widening it, and the sums over the lanes of a product. Query vectors lie
// across lanes here, so the sums that `attend` makes lane by lane (dot_rows, sum_four) are made vector by vector, in
// its order; scores are then turned round, and weights and V go attend's own way.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/attend_rows.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/attend-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

/// Query vectors across lanes.
using Tag = hn::ScalableTag<float>;
/// Rows of K that are widened together.
constexpr int kStepKeys = 8;
/// Rows of K are fetched this many before they are widened, rows of V with the row of K.
constexpr int kKeysAhead = 2 * kStepKeys;
/// Vectors of queries that share the broadcasts of a key, and keys whose sums fill the registers with them: 8 x 3 of
/// 32, else 4 x 2 of 16.
constexpr std::size_t kVectors = HWY_TARGET == HWY_AVX3 ? 3 : 2;
template <int kPanelVectors>
constexpr int kKeys = kPanelVectors == 1 || HWY_TARGET == HWY_AVX3 ? kStepKeys : kStepKeys / 2;

std::size_t whole_vectors(std::size_t queries) {
  const std::size_t lanes = hn::Lanes(Tag());
  return (queries + lanes - 1) / lanes * lanes;
}

/// How the workspace is divided: each part begins where a vector may.
struct RowsSpace {
  float* queries;  ///< [panel, d in pair order, lane]
  float* out;      ///< [query, d] in pair order
  float* scores;   ///< [lane, kPaddedTile]
  float* keys;     ///< [kStepKeys, d] in pair order
};

std::size_t rows_floats(std::size_t queries, std::size_t dim) {
  return whole_vectors(queries) * (2 * dim + kPaddedTile) + kStepKeys * dim;
}

RowsSpace carve_rows(float* at, std::size_t queries, std::size_t dim) {
  const std::size_t lanes = whole_vectors(queries);
  RowsSpace space{};
  space.queries = at;
  space.keys = space.queries + lanes * dim;
  space.out = space.keys + kStepKeys * dim;
  space.scores = space.out + lanes * dim;
  return space;
}

/// One slice of a call: at most kMaxGroup queries of a row.
struct FewRows {
  const KvFormat& format;
  const AttendRowsItem& item;  ///< whose query and group are the slice's
  RowsSpace space;
  std::size_t whole_group;  ///< the call's
  std::size_t first_query;  ///< of the slice, in the group

  std::size_t dim() const { return static_cast<std::size_t>(format.dim); }
  std::size_t group() const { return static_cast<std::size_t>(item.group); }
  std::size_t queries() const { return static_cast<std::size_t>(item.rows) * group(); }
  std::size_t whole_queries() const { return static_cast<std::size_t>(item.rows) * whole_group; }
  /// Where query `j` of the slice stands among those of the call.
  std::size_t place(std::size_t j) const { return j / group() * whole_group + first_query + j % group(); }
};

/// Vectors of the panel that starts at vector `first`.
HWY_INLINE std::size_t panel_vectors(const FewRows& work, std::size_t first) {
  return std::min(kVectors, whole_vectors(work.queries()) / hn::Lanes(Tag()) - first);
}

/// Queries as `attend` arranges them, turned round: panels of [d, lane]. Lanes past the last are zero.
template <KvType kType, class D>
void turn_queries(D d, const FewRows& work) {
  const std::size_t dim = work.dim();
  const std::size_t lanes = hn::Lanes(Tag());
  float* arranged = work.space.out;  // free until the first tile
  for (int r = 0; r < work.item.rows; ++r) {
    arrange_queries<kType>(d, work.item.query + static_cast<std::size_t>(r) * work.item.query_stride, work.item.group,
                           dim, arranged + static_cast<std::size_t>(r) * work.group() * dim);
  }
  const std::size_t vectors = whole_vectors(work.queries()) / lanes;
  for (std::size_t first = 0; first < vectors; first += kVectors) {
    const std::size_t width = panel_vectors(work, first) * lanes;
    float* to = work.space.queries + first * lanes * dim;
    for (std::size_t c = 0; c < width; ++c) {
      const std::size_t query = first * lanes + c;
      for (std::size_t i = 0; i < dim; ++i) {
        to[i * width + c] = query < work.queries() ? arranged[query * dim + i] : 0.0F;
      }
    }
  }
}

/// Rows of K as floats in pair order.
template <KvType kType, class D>
HWY_INLINE void widen_rows(D d, const std::byte* const* rows, std::size_t dim, float* HWY_RESTRICT to) {
  const std::size_t lanes = hn::Lanes(d);
  for (int r = 0; r < kStepKeys; ++r, to += dim) {
    for (std::size_t u = 0; u < dim / (2 * lanes); ++u) {
      hn::StoreU(VectorPair<kType>::first(d, rows[r], u), d, to + 2 * u * lanes);
      hn::StoreU(VectorPair<kType>::second(d, rows[r], u), d, to + (2 * u + 1) * lanes);
    }
  }
}

/// What lane `lane` of dot_rows' sums holds, for some keys and a panel of queries.
template <std::size_t kRowLanes, int kMany, int kPanelVectors, class V = hn::Vec<Tag>>
HWY_INLINE void sum_lane(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT queries, std::size_t dim,
                         std::size_t lane, V (&sums)[kMany][kPanelVectors]) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  for (int r = 0; r < kMany; ++r) {
    for (int c = 0; c < kPanelVectors; ++c) sums[r][c] = hn::Zero(d);
  }
  for (std::size_t first = lane; first < lane + 2 * kRowLanes; first += kRowLanes) {
    for (std::size_t i = first; i < dim; i += 2 * kRowLanes) {
      V query[kPanelVectors];
      for (std::size_t c = 0; c < kPanelVectors; ++c) query[c] = hn::Load(d, queries + (i * kPanelVectors + c) * lanes);
      for (int r = 0; r < kMany; ++r) {
        const V key = hn::Set(d, keys[static_cast<std::size_t>(r) * dim + i]);
        for (int c = 0; c < kPanelVectors; ++c) sums[r][c] = hn::MulAdd(key, query[c], sums[r][c]);
      }
    }
  }
}

/// The sums of all lanes, added as dot_step adds them.
template <std::size_t kRowLanes, int kMany, int kPanelVectors, class V = hn::Vec<Tag>>
HWY_INLINE void sum_lanes(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT queries, std::size_t dim,
                          float scale, V (&scores)[kMany][kPanelVectors]) {
  constexpr std::size_t kParts = std::min(kRowLanes, kPartLanes);
  static_assert(kRowLanes == kParts || kRowLanes == 2 * kParts);
  const Tag d;
  V parts[kParts][kMany][kPanelVectors];
  for (std::size_t p = 0; p < kParts; ++p) {
    sum_lane<kRowLanes>(keys, queries, dim, p, parts[p]);
    if constexpr (kRowLanes > kParts) {
      V upper[kMany][kPanelVectors];
      sum_lane<kRowLanes>(keys, queries, dim, p + kParts, upper);
      for (int r = 0; r < kMany; ++r) {
        for (int c = 0; c < kPanelVectors; ++c) parts[p][r][c] = hn::Add(parts[p][r][c], upper[r][c]);
      }
    }
  }
  for (int r = 0; r < kMany; ++r) {
    for (int c = 0; c < kPanelVectors; ++c) {
      const auto four = [&](std::size_t p) HWY_ATTR {
        return hn::Add(hn::Add(parts[p][r][c], parts[p + 2][r][c]), hn::Add(parts[p + 1][r][c], parts[p + 3][r][c]));
      };
      V all;
      if constexpr (kParts == 8) {
        all = hn::Add(four(0), four(4));
      } else if constexpr (kParts == 4) {
        all = four(0);
      } else {
        static_assert(kParts == 1);
        all = parts[0][r][c];
      }
      scores[r][c] = hn::Mul(all, hn::Set(d, scale));
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Each four lanes of `v` to a place of their own, `stride` a lane.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void store_fours(D d, V v, float* HWY_RESTRICT to, std::size_t stride) {
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<D> half;
    store_fours(half, hn::LowerHalf(half, v), to, stride);
    store_fours(half, hn::UpperHalf(half, v), to + hn::Lanes(half) * stride, stride);
  } else {
    hn::StoreU(v, d, to);
  }
}

/// Four keys' scores of a vector of queries, turned round: [lane, key].
template <class V = hn::Vec<Tag>>
HWY_INLINE void store_turned(V a, V b, V c, V e, float* HWY_RESTRICT to, std::size_t stride) {
  const Tag d;
  const hn::Repartition<std::uint64_t, Tag> pairs;
  const auto two = [&](V low, V high) HWY_ATTR { return hn::BitCast(pairs, hn::InterleaveLower(d, low, high)); };
  const auto other = [&](V low, V high) HWY_ATTR { return hn::BitCast(pairs, hn::InterleaveUpper(d, low, high)); };
  const auto ab = two(a, b), ce = two(c, e), ab2 = other(a, b), ce2 = other(c, e);
  store_fours(d, hn::BitCast(d, hn::InterleaveLower(pairs, ab, ce)), to, stride);
  store_fours(d, hn::BitCast(d, hn::InterleaveUpper(pairs, ab, ce)), to + stride, stride);
  store_fours(d, hn::BitCast(d, hn::InterleaveLower(pairs, ab2, ce2)), to + 2 * stride, stride);
  store_fours(d, hn::BitCast(d, hn::InterleaveUpper(pairs, ab2, ce2)), to + 3 * stride, stride);
}
#endif

/// scores[lane, key] of kStepKeys widened keys and one panel of queries.
template <std::size_t kRowLanes, int kPanelVectors, std::size_t kDim>
HWY_NOINLINE void score_panel(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT queries, std::size_t any_dim,
                              float scale, float* HWY_RESTRICT to) {
  constexpr int kMany = kKeys<kPanelVectors>;
  const std::size_t dim = kDim > 0 ? kDim : any_dim;
  const std::size_t lanes = hn::Lanes(Tag());
  for (int first = 0; first < kStepKeys; first += kMany) {
    hn::Vec<Tag> scores[kMany][kPanelVectors];
    sum_lanes<kRowLanes>(keys + static_cast<std::size_t>(first) * dim, queries, dim, scale, scores);
    for (std::size_t c = 0; c < kPanelVectors; ++c) {
      float* HWY_RESTRICT at = to + c * lanes * kPaddedTile + first;
#if HWY_TARGET == HWY_SCALAR
      for (int r = 0; r < kMany; ++r) hn::StoreU(scores[r][c], Tag(), at + r);
#else
      for (int r = 0; r < kMany; r += 4) {
        store_turned(scores[r][c], scores[r + 1][c], scores[r + 2][c], scores[r + 3][c], at + r, kPaddedTile);
      }
#endif
    }
  }
}

/// score_tile for all queries.
template <KvType kType, class D>
HWY_INLINE void score_rows(D d, const FewRows& work, const RowTile& tile) {
  const std::size_t dim = work.dim();
  const std::size_t lanes = hn::Lanes(Tag());
  const std::size_t vectors = whole_vectors(work.queries()) / lanes;
  const std::size_t row_bytes = work.format.row_bytes();
  const int rows = tile.count + tile.linked;
  constexpr std::size_t kRowLanes = hn::MaxLanes(D());
  for (int i = 0; i < tile.count; i += kStepKeys) {
    const int end = std::min(i + kStepKeys, tile.count);
    for (int f = i; f < end; ++f) {
      const int ahead = f + kKeysAhead;
      if (ahead < rows) prefetch_row(tile.rows[ahead < tile.count ? ahead : ahead + tile.count], 0, row_bytes);
      prefetch_row(tile.v()[f], 0, row_bytes);
    }
    widen_rows<kType>(d, tile.k() + i, dim, work.space.keys);
    for (std::size_t first = 0; first < vectors; first += kVectors) {
      const float* queries = work.space.queries + first * lanes * dim;
      float* to = work.space.scores + first * lanes * kPaddedTile + i;
      const auto score = [&](auto many, auto known) HWY_ATTR {
        score_panel<kRowLanes, decltype(many)::value, decltype(known)::value>(work.space.keys, queries, dim,
                                                                              work.item.scale, to);
      };
      const auto score_of = [&](auto many) HWY_ATTR {
        if (dim == 64) {
          score(many, std::integral_constant<std::size_t, 64>());
        } else if (dim == 128) {
          score(many, std::integral_constant<std::size_t, 128>());
        } else {
          score(many, std::integral_constant<std::size_t, 0>());
        }
      };
      const std::size_t many = panel_vectors(work, first);
      if (many == kVectors) {
        score_of(std::integral_constant<int, static_cast<int>(kVectors)>());
      } else if (many == 2) {
        score_of(std::integral_constant<int, 2>());
      } else {
        score_of(std::integral_constant<int, 1>());
      }
    }
  }
  scale_scores<kType>(tile, static_cast<int>(work.queries()), work.space.scores);
}

/// Entries of the tile of slots [from, ...) that lie at `slot` or before.
HWY_INLINE int count_seen(const RowTile& tile, const HeadView& head, std::int32_t from, std::int32_t slot) {
  if (head.positions == nullptr) return std::clamp(slot - from + 1, 0, tile.count);
  return static_cast<int>(std::upper_bound(tile.entry, tile.entry + tile.count, slot) - tile.entry);
}

/// Adds a tile, whose next is linked, to all queries.
template <KvType kType, class D>
HWY_INLINE void add_rows(D d, const FewRows& work, const RowTile& tile, std::int32_t from, RunningSoftmax* running) {
  const std::size_t dim = work.dim();
  const std::size_t group = work.group();
  score_rows<kType>(d, work, tile);
  int seen[kFewRows] = {};
  for (int r = 0; r < work.item.rows; ++r) {
    seen[r] = count_seen(tile, *work.item.head, from, work.item.first_slot + r);
    for (std::size_t j = static_cast<std::size_t>(r) * group; j < static_cast<std::size_t>(r + 1) * group; ++j) {
      if (seen[r] == 0) continue;
      take_tile<kType>(tile, seen[r], work.space.scores + j * kPaddedTile, running[j], work.space.out + j * dim, dim);
    }
  }
  // Nothing is left to fetch: rows are asked for again, which the first cache answers.
  ValueRange values{.rows = tile.v(), .end = tile.count};
  if (seen[0] == tile.count) {
    add_tile<kType>(d, values, work.space.scores, {work.space.out, static_cast<int>(work.queries()), dim});
    return;
  }
  for (int r = 0; r < work.item.rows; ++r) {
    values.end = seen[r];
    const std::size_t j = static_cast<std::size_t>(r) * group;
    add_tile<kType>(d, values, work.space.scores + j * kPaddedTile, {work.space.out + j * dim, work.item.group, dim});
  }
}

template <KvType kType, class D>
HWY_INLINE void attend_rows_item(D d, const FewRows& work) {
  const AttendRowsItem& item = work.item;
  const std::size_t dim = work.dim();
  const std::size_t queries = work.queries();
  RowTile tiles[2];
  RunningSoftmax running[kFewRows * kMaxGroup];
  turn_queries<kType>(d, work);
  const std::int32_t step = tile_rows(work.format);
  RowTile* tile = &tiles[0];
  RowTile* next = &tiles[1];
  const auto locate_from = [&](std::int32_t from, RowTile& found) HWY_ATTR {
    locate<kType>(work.format, *item.head, nullptr, from, std::min(from + step, item.end), found);
  };
  locate_from(item.begin, *tile);
  float* partial = item.partial;
  for (std::int32_t from = item.begin; from < item.end; from += step) {
    if ((from - item.begin) % kSplitTokens == 0) {
      std::fill(running, running + queries, RunningSoftmax());
      std::fill(work.space.out, work.space.out + queries * dim, 0.0F);
    }
    const std::int32_t to = std::min(from + step, item.end);
    next->count = 0;
    if (to < item.end) locate_from(to, *next);
    link(*tile, *next);
    add_rows<kType>(d, work, *tile, from, running);
    std::swap(tile, next);
    if (to < item.end && (to - item.begin) % kSplitTokens != 0) continue;
    for (std::size_t j = 0; j < queries; ++j) {
      const std::size_t place = work.place(j);
      write_query<kType>(d, work.space.out + j * dim, dim, running[j], partial + place * dim,
                         partial[work.whole_queries() * dim + place]);
    }
    partial += partial_floats(static_cast<int>(work.whole_queries()), work.format.dim);
  }
}

void attend_rows_target(const KvFormat& format, const AttendRowsItem& item, std::span<std::byte> workspace) {
  auto* first = reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(workspace.data()) + 63) / 64 * 64);
  const auto dim = static_cast<std::size_t>(format.dim);
  for (int from = 0; from < item.group; from += kMaxGroup) {
    AttendRowsItem slice = item;
    slice.query += static_cast<std::size_t>(from) * dim;
    slice.group = std::min(item.group - from, kMaxGroup);
    const auto queries = static_cast<std::size_t>(slice.rows * slice.group);
    const FewRows work{format, slice, carve_rows(first, queries, dim), static_cast<std::size_t>(item.group),
                       static_cast<std::size_t>(from)};
    with_kv_type(format.type, [&](auto type) HWY_ATTR {
      with_row_tag(format.dim, [&](auto d) HWY_ATTR { attend_rows_item<decltype(type)::value>(d, work); });
    });
  }
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(attend_rows_target);
HWY_EXPORT(rows_floats);

std::size_t attend_rows_workspace(const KvFormat& format, int queries) {
  return HWY_DYNAMIC_DISPATCH(rows_floats)(static_cast<std::size_t>(queries), static_cast<std::size_t>(format.dim)) *
             sizeof(float) +
         64;
}

void attend_rows(const KvFormat& format, const AttendRowsItem& item, std::span<std::byte> workspace) {
  check(item.rows >= 1 && item.rows <= kFewRows, "attend_rows takes 1 to kFewRows rows");
  check_queries(format, item.group);
  check(item.begin % kSplitTokens == 0, "attend_rows begins where a split begins");
  check(workspace.size() >= attend_rows_workspace(format, item.rows * item.group), "attend_rows needs more workspace");
  HWY_DYNAMIC_DISPATCH(attend_rows_target)(format, item, workspace);
}

}  // namespace glimpse::kernels
#endif
