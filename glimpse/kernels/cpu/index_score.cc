#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/index_score.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/rows-inl.h"
#include "glimpse/kernels/index.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

constexpr int kMaxWidth = 2 * kMaxDim;

/// Rows that lie one after the other.
struct Matrix {
  const std::byte* rows = nullptr;
  KvFormat format;
  std::int32_t count = 0;
};

/// The rows of a tile and those behind them, which are fetched meanwhile.
HWY_INLINE void point_at(const Matrix& matrix, std::int32_t from, RowTile& tile) {
  const std::size_t bytes = matrix.format.row_bytes();
  tile.count = std::min(tile_rows(matrix.format), matrix.count - from);
  const int ahead = std::min(tile.count, matrix.count - from - tile.count);
  const std::byte* row = matrix.rows + static_cast<std::size_t>(from) * bytes;
  for (int i = 0; i < tile.count + ahead; ++i, row += bytes) tile.rows[i] = row;
  // A step reads on behind the last rows: any row will do, its sums go nowhere.
  for (int i = tile.count + ahead; i < tile.count + ahead + kRowStep; ++i) tile.rows[i] = tile.rows[0];
  tile.linked = ahead;
}

/// What a tile's products become before they are pooled.
struct Terms {
  const float* products = nullptr;  ///< [g, kPaddedTile]
  const float* radii = nullptr;     ///< [rows of the tile] or null
  const float* norms = nullptr;
  int group = 1;
  bool begins = true;  ///< the first slice of the group: nothing is pooled so far
  float share = 1;     ///< of the mean, what its sum is multiplied by
};

/// `pooled`: what earlier slices of the group came to.
template <bool kMax, class D, class Load, class V = hn::Vec<D>>
HWY_INLINE V pool_terms(D d, const Terms& terms, std::size_t i, V pooled, const Load& load) {
  for (std::size_t j = 0; j < static_cast<std::size_t>(terms.group); ++j) {
    auto score = load(terms.products + j * kPaddedTile + i);
    if (terms.radii != nullptr) score = hn::MulAdd(load(terms.radii + i), hn::Set(d, terms.norms[j]), score);
    pooled = kMax ? hn::Max(pooled, score) : hn::Add(pooled, score);
  }
  return kMax ? pooled : hn::Mul(pooled, hn::Set(d, terms.share));
}

template <bool kMax>
HWY_INLINE void pool_tile(const Terms& terms, std::size_t count, float* scores) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto none = kMax ? hn::Set(d, kMinusInfinity) : hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto load = [&](const float* from) HWY_ATTR { return hn::LoadU(d, from); };
    const auto before = terms.begins ? none : load(scores + i);
    hn::StoreU(pool_terms<kMax>(d, terms, i, before, load), d, scores + i);
  }
  if (i < count) {
    const auto load = [&](const float* from) HWY_ATTR { return load_tail(d, from, count - i, 0); };
    const auto before = terms.begins ? none : load(scores + i);
    store_tail(d, pool_terms<kMax>(d, terms, i, before, load), scores + i, count - i);
  }
}

/// One slice of a group: `item` holds its queries, `slice` how it is pooled with the others.
template <KvType kType>
HWY_INLINE void score_type(const NodeScoreItem& item, const GroupSlice& slice) {
  const Matrix matrix{item.rows, {kType, item.width}, item.count};
  const auto width = static_cast<std::size_t>(item.width);
  HWY_ALIGN float products[kMaxGroup * kPaddedTile];
  HWY_ALIGN float arranged[kMaxGroup * kMaxWidth];
  RowTile tile;
  with_row_tag(item.width, [&](auto d) HWY_ATTR {
    arrange_queries<kType>(d, item.queries, item.group, width, arranged);
    for (std::int32_t from = 0; from < item.count; from += tile.count) {
      point_at(matrix, from, tile);
      const Fetch fetch{tile.rows + tile.count, tile.linked};
      score_tile<kType>(d, matrix.format, tile, {arranged, item.group, item.scale}, fetch, products);
      Terms terms{.products = products, .norms = item.norms, .group = item.group};
      terms.begins = slice.begins;
      terms.share = slice.share;
      if (item.radii != nullptr) terms.radii = item.radii + from;
      const auto count = static_cast<std::size_t>(tile.count);
      if (item.pooling == NodePooling::max) {
        pool_tile<true>(terms, count, item.scores + from);
      } else {
        pool_tile<false>(terms, count, item.scores + from);
      }
    }
  });
}

void score_nodes_target(const NodeScoreItem& item, const GroupSlice& slice) {
  switch (item.type) {
    case KvType::f32:
      return score_type<KvType::f32>(item, slice);
    case KvType::f16:
      return score_type<KvType::f16>(item, slice);
    case KvType::bf16:
      return score_type<KvType::bf16>(item, slice);
    case KvType::q8_0:
      return;
  }
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(score_nodes_target);

void score_nodes(const NodeScoreItem& item) {
  check(item.type != KvType::q8_0, "rows of an index are f32, f16 or bf16");
  check(item.width > 0 && item.width <= 512 && item.width % 8 == 0, "rows of an index have 8 to 512 values, in eights");
  check(item.group >= 1, "score_nodes takes groups of at least one query");
  for (int first = 0; first < item.group && item.count > 0; first += kSliceQueries) {
    NodeScoreItem part = item;
    part.queries += static_cast<std::size_t>(first) * static_cast<std::size_t>(item.width);
    if (item.norms != nullptr) part.norms += first;
    part.group = std::min(item.group - first, kSliceQueries);
    HWY_DYNAMIC_DISPATCH(score_nodes_target)(part, slice_of(item.group, first));
  }
}

}  // namespace glimpse::kernels
#endif
