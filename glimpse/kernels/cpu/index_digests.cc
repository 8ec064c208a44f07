#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/index_digests.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/limits.h"
#include "glimpse/kernels/cpu/vec-inl.h"
#include "glimpse/kernels/index.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

constexpr std::size_t kTile = kDigestTile;
constexpr std::size_t kMostQueries = kSliceQueries;
constexpr std::size_t kMostDims = kMaxHeadDim;
/// Queries that share a tile's loads: their sums are 12 of AVX2's 16 registers, 8 of AVX-512's 32.
constexpr int kTogether = HWY_TARGET == HWY_AVX3 ? 4 : HWY_TARGET == HWY_AVX2 ? 3 : 1;

/// The weights of a few queries, [query, dim], and where in a line the bound lies that each takes (bytes).
struct Weights {
  const float* values = nullptr;
  const std::uint32_t* bounds = nullptr;
  std::size_t dim = 0;
};

/// products[q, n] = the sum over dimensions of weight and value of a tile's digests. `next`: the tile to fetch
/// meanwhile, or null.
template <KvType kType, bool kBounds, int kQueries, class D>
HWY_NOINLINE void dot_tile(D d, const std::byte* tile, const std::byte* next, const Weights& weights,
                           float* HWY_RESTRICT products) {
  constexpr std::size_t kPairs = kTile / (2 * hn::MaxLanes(D()));
  constexpr std::size_t kLine = kTile * VectorPair<kType>::kBytes * (kBounds ? 2 : 1);
  hn::Vec<D> sums[kQueries][2 * kPairs];
  for (std::size_t q = 0; q < kQueries; ++q) {
    for (std::size_t u = 0; u < 2 * kPairs; ++u) sums[q][u] = hn::Zero(d);
  }
  for (std::size_t i = 0; i < weights.dim; ++i) {
    if (next != nullptr) {
      for (std::size_t b = 0; b < kLine; b += 64) prefetch_l2(next + i * kLine + b);
    }
    const std::byte* const line = tile + i * kLine;
    if constexpr (kBounds) {
      for (std::size_t q = 0; q < kQueries; ++q) {
        const std::byte* const from = line + weights.bounds[q * weights.dim + i];
        const auto weight = hn::Set(d, weights.values[q * weights.dim + i]);
        for (std::size_t u = 0; u < kPairs; ++u) {
          sums[q][2 * u] = hn::MulAdd(VectorPair<kType>::first(d, from, u), weight, sums[q][2 * u]);
          sums[q][2 * u + 1] = hn::MulAdd(VectorPair<kType>::second(d, from, u), weight, sums[q][2 * u + 1]);
        }
      }
    } else {
      for (std::size_t u = 0; u < kPairs; ++u) {
        const auto first = VectorPair<kType>::first(d, line, u);
        const auto second = VectorPair<kType>::second(d, line, u);
        for (std::size_t q = 0; q < kQueries; ++q) {
          const auto weight = hn::Set(d, weights.values[q * weights.dim + i]);
          sums[q][2 * u] = hn::MulAdd(first, weight, sums[q][2 * u]);
          sums[q][2 * u + 1] = hn::MulAdd(second, weight, sums[q][2 * u + 1]);
        }
      }
    }
  }
  for (std::size_t q = 0; q < kQueries; ++q) {
    for (std::size_t u = 0; u < kPairs; ++u) {
      float* const to = products + q * kTile + 2 * u * hn::Lanes(d);
      if constexpr (VectorPair<kType>::kEvenOdd) {
        hn::StoreInterleaved2(sums[q][2 * u], sums[q][2 * u + 1], d, to);
      } else {
        hn::StoreU(sums[q][2 * u], d, to);
        hn::StoreU(sums[q][2 * u + 1], d, to + hn::Lanes(d));
      }
    }
  }
}

/// All queries of a group, a few at a time; the first of them fetch the next tile.
template <KvType kType, bool kBounds>
HWY_INLINE void dot_group(const std::byte* tile, const std::byte* next, const Weights& weights, int group,
                          float* HWY_RESTRICT products) {
  const hn::ScalableTag<float> d;
  for (int j = 0; j < group; next = nullptr) {
    const auto from = static_cast<std::size_t>(j);
    const Weights some{weights.values + from * weights.dim, kBounds ? weights.bounds + from * weights.dim : nullptr,
                       weights.dim};
    float* const to = products + from * kTile;
    const int left = group - j;
    if (left >= kTogether && left != kTogether + 1) {
      dot_tile<kType, kBounds, kTogether>(d, tile, next, some, to);
      j += kTogether;
    } else if (kTogether >= 2 && left >= 2) {  // four are two and two: one alone waits for its sums
      dot_tile<kType, kBounds, std::min(2, kTogether)>(d, tile, next, some, to);
      j += 2;
    } else {
      dot_tile<kType, kBounds, 1>(d, tile, next, some, to);
      ++j;
    }
  }
}

/// What pool_tile pools: a tile's products and, each optional, spreads and radii.
struct TileTerms {
  const float* products = nullptr;
  const float* spreads = nullptr;
  const float* radii = nullptr;
  GroupSlice slice;
};

/// The scores of one tile from its products.
template <bool kMax>
HWY_INLINE void pool_tile(const DigestScoreItem& item, const TileTerms& terms, float* HWY_RESTRICT scores) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, item.scale);
  for (std::size_t i = 0; i < kTile; i += hn::Lanes(d)) {
    auto pooled = kMax ? hn::Set(d, kMinusInfinity) : hn::Zero(d);
    if (!terms.slice.begins) pooled = hn::LoadU(d, scores + i);
    for (std::size_t j = 0; j < static_cast<std::size_t>(item.group); ++j) {
      auto score = hn::Mul(hn::LoadU(d, terms.products + j * kTile + i), scale);
      if (terms.radii != nullptr) score = hn::MulAdd(hn::LoadU(d, terms.radii + i), hn::Set(d, item.norms[j]), score);
      if (terms.spreads != nullptr) {
        score = hn::Add(score, hn::Sqrt(hn::Max(hn::Zero(d), hn::LoadU(d, terms.spreads + j * kTile + i))));
      }
      pooled = kMax ? hn::Max(pooled, score) : hn::Add(pooled, score);
    }
    if (!kMax) pooled = hn::Mul(pooled, hn::Set(d, terms.slice.share));
    hn::StoreU(pooled, d, scores + i);
  }
}

/// One slice of a group: `item` holds its queries.
template <KvType kType, bool kBounds>
HWY_INLINE void score_tiles(const DigestScoreItem& item, const GroupSlice& slice) {
  const auto dim = static_cast<std::size_t>(item.dim);
  const std::size_t tile_bytes = kTile * VectorPair<kType>::kBytes * dim * (kBounds ? 2 : 1);
  HWY_ALIGN float products[kMostQueries * kTile];
  HWY_ALIGN float spreads[kMostQueries * kTile];
  HWY_ALIGN float scores[kTile] = {};
  std::uint32_t bounds[kBounds ? kMostQueries * kMostDims : 1];
  if constexpr (kBounds) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(item.group) * dim; ++i) {
      bounds[i] = item.queries[i] < 0 ? 0 : static_cast<std::uint32_t>(kTile * VectorPair<kType>::kBytes);
    }
  }
  const std::size_t begin = static_cast<std::size_t>(item.first), end = begin + static_cast<std::size_t>(item.count);
  const std::size_t last = (end - 1) / kTile;
  for (std::size_t t = begin / kTile; t <= last; ++t) {
    const std::byte* const tile = item.tiles + t * tile_bytes;
    const Weights weights{item.queries, bounds, dim};
    dot_group<kType, kBounds>(tile, t < last ? tile + tile_bytes : nullptr, weights, item.group, products);
    if (item.variances != nullptr) {
      const auto* const rest = reinterpret_cast<const std::byte*>(item.variances + t * kTile * dim);
      const std::byte* const next = t < last ? rest + kTile * dim * sizeof(float) : nullptr;
      dot_group<KvType::f32, false>(rest, next, {item.squares, nullptr, dim}, item.group, spreads);
    }
    TileTerms terms{.products = products, .slice = slice};
    if (item.radii != nullptr) terms.radii = item.radii + t * kTile;
    if (item.variances != nullptr) terms.spreads = spreads;
    const std::size_t from = std::max(begin, t * kTile), to = std::min(end, (t + 1) * kTile);
    float* const out = to - from == kTile ? item.scores + (from - begin) : scores;
    if (out == scores && !slice.begins) {
      std::copy_n(item.scores + (from - begin), to - from, scores + (from - t * kTile));
    }
    if (item.pooling == NodePooling::max) {
      pool_tile<true>(item, terms, out);
    } else {
      pool_tile<false>(item, terms, out);
    }
    if (out == scores) std::copy(scores + (from - t * kTile), scores + (to - t * kTile), item.scores + (from - begin));
  }
}

template <KvType kType>
HWY_INLINE void score_type(const DigestScoreItem& item, const GroupSlice& slice) {
  if (item.bounds) {
    score_tiles<kType, true>(item, slice);
  } else {
    score_tiles<kType, false>(item, slice);
  }
}

void score_digests_target(const DigestScoreItem& item, const GroupSlice& slice) {
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
HWY_EXPORT(score_digests_target);

void score_digests(const DigestScoreItem& item) {
  check(item.type != KvType::q8_0, "values of digests are f32, f16 or bf16");
  check_queries({item.type, item.dim}, item.group);
  check(item.first >= 0, "digests are counted from 0");
  for (int first = 0; first < item.group && item.count > 0; first += kSliceQueries) {
    const std::size_t floats = static_cast<std::size_t>(first) * static_cast<std::size_t>(item.dim);
    DigestScoreItem part = item;
    part.queries += floats;
    if (item.squares != nullptr) part.squares += floats;
    if (item.norms != nullptr) part.norms += first;
    part.group = std::min(item.group - first, kSliceQueries);
    HWY_DYNAMIC_DISPATCH(score_digests_target)(part, slice_of(item.group, first));
  }
}

}  // namespace glimpse::kernels
#endif
