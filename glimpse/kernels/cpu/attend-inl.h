// What attending kernels share: weights from scores by an online softmax, and their products with V. Included once for
// each instruction set. Nothing is kept, any thread.
#if defined(GLIMPSE_KERNELS_CPU_ATTEND_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GLIMPSE_KERNELS_CPU_ATTEND_INL_H_
#undef GLIMPSE_KERNELS_CPU_ATTEND_INL_H_
#else
#define GLIMPSE_KERNELS_CPU_ATTEND_INL_H_
#endif

#include <cmath>

#include "glimpse/kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {

/// Outputs of some queries, [count, dim] in pair order.
struct OutRows {
  float* rows = nullptr;
  int count = 0;
  std::size_t dim = 0;
};

/// Rows [first, end) of V, and what to fetch meanwhile: number i >> shift at row i (null: nothing). More at once than
/// the core's miss buffers hold slows down what is read, so what the hardware fetches by itself (next_keys_shift) is
/// left to it, and V is fetched while K is read: 0.70 of the streamed bandwidth; all by hand 0.62, all by hardware
/// 0.50.
struct ValueRange {
  const std::byte* const* rows = nullptr;
  int first = 0;
  int end = 0;
  const std::byte* const* fetch = nullptr;
  int shift = 0;
};

/// V is read so many rows at a time: all of their bytes before the next, so that the hardware sees one stream.
constexpr int kValueRows = 64;

/// Adds weights * V to kPairs pairs of kQueries outputs, the accumulators in registers over all rows of the range.
template <KvType kType, int kQueries, int kPairs, class D>
HWY_INLINE void add_values(D d, const ValueRange& range, std::size_t pair, const float* HWY_RESTRICT weights,
                           const OutRows& out) {
  using V = hn::Vec<D>;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t first = 2 * pair * lanes;
  float* HWY_RESTRICT const to = out.rows + first;
  V sums[kQueries][2 * kPairs];
  for (std::size_t q = 0; q < kQueries; ++q) {
    for (std::size_t u = 0; u < 2 * kPairs; ++u) sums[q][u] = hn::LoadU(d, to + q * out.dim + u * lanes);
  }
  // Lines that start in this part of the row, so that each line is fetched once.
  const std::size_t first_byte = first * VectorPair<kType>::kBytes;
  const std::size_t end_byte = first_byte + 2 * kPairs * lanes * VectorPair<kType>::kBytes;
  const std::size_t first_line = (first_byte + 63) / 64 * 64;
  const std::byte* const* const rows = range.rows;
  const std::byte* const* const fetch = range.fetch != nullptr ? range.fetch : rows;
  const int shift = range.shift;
  // With a shift, rows between ask for what is asked for already.
  const int skip = range.fetch == nullptr ? -1 : (1 << shift) - 1;
  for (int i = range.first; i < range.end; ++i) {
    if ((i & skip) == 0) prefetch_row(fetch[i >> shift], first_line, end_byte);
    const std::byte* row = rows[i];
    V weight[kQueries];
    for (int q = 0; q < kQueries; ++q) weight[q] = hn::Set(d, weights[q * kPaddedTile + i]);
    for (int u = 0; u < 2 * kPairs; ++u) {
      const std::size_t at = pair + static_cast<std::size_t>(u) / 2;
      const V value = u % 2 == 0 ? VectorPair<kType>::first(d, row, at) : second_vector<kType>(d, row, at);
      for (int q = 0; q < kQueries; ++q) sums[q][u] = hn::MulAdd(weight[q], value, sums[q][u]);
    }
  }
  for (std::size_t q = 0; q < kQueries; ++q) {
    for (std::size_t u = 0; u < 2 * kPairs; ++u) hn::StoreU(sums[q][u], d, to + q * out.dim + u * lanes);
  }
}

// A call, not inlined at each use, here and where rows are located: no slower, and a third less to compile.
template <KvType kType, int kQueries, class D>
HWY_NOINLINE void add_values_of(D d, const ValueRange& range, const float* HWY_RESTRICT weights, const OutRows& out) {
  constexpr int kWide = kQueries == 1 ? 4 : 2;
  const std::size_t pairs = out.dim / (2 * hn::Lanes(d));
  std::size_t pair = 0;
  for (; pair + kWide <= pairs; pair += kWide) {
    add_values<kType, kQueries, kWide>(d, range, pair, weights, out);
  }
  for (; pair < pairs; ++pair) add_values<kType, kQueries, 1>(d, range, pair, weights, out);
}

/// Adds weights * V of a tile to all outputs.
template <KvType kType, class D>
HWY_INLINE void add_tile(D d, const ValueRange& tile, const float* HWY_RESTRICT weights, const OutRows& out) {
  for (int first = 0; first < tile.end; first += kValueRows) {
    ValueRange range = tile;
    range.first = first;
    range.end = std::min(first + kValueRows, tile.end);
    for (int j = 0; j < out.count;) {
      const int share = query_share<D>(out.count - j);
      const float* own = weights + static_cast<std::size_t>(j) * kPaddedTile;
      const OutRows part{out.rows + static_cast<std::size_t>(j) * out.dim, share, out.dim};
      with_queries<D>(
          share, [&](auto queries) HWY_ATTR { add_values_of<kType, decltype(queries)::value>(d, range, own, part); });
      j += share;
      range.fetch = nullptr;  // once for all queries
    }
  }
}

/// Online softmax of one query over a tile: turns scores into weights, rescales what was summed before.
struct RunningSoftmax {
  float largest = kMinusInfinity;
  float sum = 0;
};

inline HWY_NOINLINE void take_scores(float* HWY_RESTRICT scores, int count, RunningSoftmax& running,
                                     float* HWY_RESTRICT out, std::size_t dim) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int>(hn::Lanes(d));
  const int padded = (count + lanes - 1) / lanes * lanes;
  for (int i = count; i < padded; ++i) scores[i] = kMinusInfinity;
  auto largest = hn::Set(d, running.largest);
  for (int i = 0; i < padded; i += lanes) largest = hn::Max(largest, hn::LoadU(d, scores + i));
  const auto top = hn::MaxOfLanes(d, largest);
  const float next = hn::GetLane(top);
  // All -inf so far: any finite reference makes every weight 0.
  const auto reference = next == kMinusInfinity ? hn::Zero(d) : hn::Set(d, next);
  auto sum = hn::Zero(d);
  for (int i = 0; i < padded; i += lanes) {
    const auto weight = exp(d, hn::Sub(hn::LoadU(d, scores + i), reference));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, scores + i);
  }
  const auto faded = exp(d, hn::Sub(hn::Set(d, running.largest), reference));
  const float fade = hn::GetLane(faded);
  running.sum = hn::GetLane(hn::MulAdd(hn::Set(d, running.sum), faded, hn::SumOfLanes(d, sum)));
  running.largest = next;
  if (fade != 1.0F) {
    for (std::size_t i = 0; i < dim; ++i) out[i] *= fade;
  }
}

/// The same for the first `count` entries of a tile; the weights of q8_0 values take in the values' scales.
template <KvType kType>
HWY_INLINE void take_tile(const RowTile& tile, int count, float* HWY_RESTRICT scores, RunningSoftmax& running,
                          float* HWY_RESTRICT out, std::size_t dim) {
  take_scores(scores, count, running, out, dim);
  if constexpr (kType == KvType::q8_0) {
    for (int i = 0; i < count; ++i) scores[i] *= read_scale(tile.v()[i], tile.scale[i]);
  }
}

/// Row order again, normalised.
template <KvType kType, class D>
HWY_INLINE void write_output(D d, const float* HWY_RESTRICT out, std::size_t dim, float factor,
                             float* HWY_RESTRICT to) {
  if constexpr (VectorPair<kType>::kEvenOdd) {
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t at = 0; at < dim; at += 2 * lanes) {
      for (std::size_t i = 0; i < lanes; ++i) {
        to[at + 2 * i] = out[at + i] * factor;
        to[at + 2 * i + 1] = out[at + lanes + i] * factor;
      }
    }
  } else {
    for (std::size_t i = 0; i < dim; ++i) to[i] = out[i] * factor;
  }
}

/// A query's part of a partial result: its output, and the log-sum-exp of its scores.
template <KvType kType, class D>
HWY_INLINE void write_query(D d, const float* HWY_RESTRICT out, std::size_t dim, const RunningSoftmax& running,
                            float* HWY_RESTRICT to, float& lse) {
  const float inverse = running.sum > 0 || running.sum != running.sum ? 1.0F / running.sum : 0.0F;
  write_output<kType>(d, out, dim, inverse, to);
  lse = running.largest == kMinusInfinity ? kMinusInfinity : running.largest + std::log(running.sum);
}

}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
