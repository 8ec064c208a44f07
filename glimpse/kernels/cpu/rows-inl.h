// Rows of one head: where they lie (page table, list, freed slots) and their dot products with the queries of a
// group. A tile is a fixed number of entries of a range, so results depend on the range alone. Included once for
// each instruction set. Nothing is kept, any thread.
#if defined(GLIMPSE_KERNELS_CPU_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GLIMPSE_KERNELS_CPU_ROWS_INL_H_
#undef GLIMPSE_KERNELS_CPU_ROWS_INL_H_
#else
#define GLIMPSE_KERNELS_CPU_ROWS_INL_H_
#endif

#include <algorithm>

#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/limits.h"
#include "glimpse/kernels/cpu/vec-inl.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {

constexpr int kMaxGroup = kSliceQueries;
constexpr int kMaxDim = kMaxHeadDim;
constexpr int kMaxTile = 256;
/// Rows that all queries of a group take before the next are read: a multiple of every kRowsTogether and of four.
constexpr int kRowStep = 24;
constexpr int kPaddedTile = kMaxTile + kRowStep;
/// Gathered rows are fetched this many before they are read.
constexpr int kAhead = 64;
/// Rows of the next tile that a tile knows.
constexpr int kLinked = kMaxTile;
/// Queries that share the loads of a row, and rows that share the loads of a query: 3 x 3 accumulators, three queries,
/// a row and a mask are what 16 registers hold (3 x 4 spilled: twice as slow).
constexpr int kMaxQueries = HWY_TARGET == HWY_AVX3 ? 4 : HWY_TARGET == HWY_AVX2 ? 3 : 2;
template <int kQueries>
constexpr int kRowsTogether = (kQueries == 3 && kMaxQueries == 3) ? 3 : 4;

/// Rows are read a tile of K, then the same tile of V, and while one is read the next is fetched: 16 KB ahead.
HWY_INLINE int tile_rows(const KvFormat& format) {
  const std::size_t rows = (std::size_t{16} << 10) / format.row_bytes();
  return rows >= 256 ? 256 : rows >= 128 ? 128 : 64;
}

/// The entries of a tile that are not freed, in the order in which their rows are read: K, V, then the first rows of
/// the tile that comes next.
struct RowTile {
  int count = 0;
  int linked = 0;  ///< rows of the next tile behind ours, at most kLinked
  const std::byte* rows[2 * kMaxTile + kLinked + kRowStep] = {};
  std::uint32_t scale[kMaxTile];  ///< q8_0: bytes from the row to its scale, in K and V alike
  std::int32_t entry[kMaxTile];   ///< set where some are freed

  const std::byte* const* k() const { return rows; }
  const std::byte* const* v() const { return rows + count; }
};

/// Finds entries [from, to) of `list`, or slots [from, to) without one.
template <KvType kType>
HWY_NOINLINE void locate(const KvFormat& format, const HeadView& head, const std::int32_t* list, std::int32_t from,
                         std::int32_t to, RowTile& tile) {
  const std::size_t row_bytes = format.row_bytes();
  const std::size_t page_bytes = format.page_bytes();
  const auto scale_offset = static_cast<std::uint32_t>(format.scale_offset());
  int count = 0;
  const auto add = [&](std::size_t offset, std::uint32_t within) HWY_ATTR {
    tile.rows[count] = head.k_plane + offset;
    if constexpr (kType == KvType::q8_0) {
      tile.scale[count] = scale_offset + within * static_cast<std::uint32_t>(sizeof(float) - row_bytes);
    }
  };
  if (list == nullptr && head.positions == nullptr) {
    for (std::int32_t slot = from; slot < to;) {
      std::size_t offset =
          head.pages[slot >> kPageShift] * page_bytes + static_cast<std::size_t>(slot & (kPageTokens - 1)) * row_bytes;
      const std::int32_t page_end = std::min((slot | (kPageTokens - 1)) + 1, to);
      for (; slot < page_end; ++slot, ++count, offset += row_bytes) {
        add(offset, static_cast<std::uint32_t>(slot & (kPageTokens - 1)));
      }
    }
  } else {
    for (std::int32_t i = from; i < to; ++i) {
      const std::int32_t slot = list != nullptr ? list[i] : i;
      const auto within = static_cast<std::uint32_t>(slot & (kPageTokens - 1));
      add(head.pages[slot >> kPageShift] * page_bytes + within * row_bytes, within);
      tile.entry[count] = i;
      count += head.positions == nullptr || head.positions[slot] >= 0;
    }
  }
  tile.count = count;
  tile.linked = 0;
  for (int i = 0; i < count; ++i) tile.rows[count + i] = tile.rows[i] + (head.v_plane - head.k_plane);
  // Behind few rows a step reads on: any row will do, its sums go nowhere.
  for (int i = 2 * count; i < kRowStep && count > 0; ++i) tile.rows[i] = tile.rows[0];
}

/// Lets the first rows of `next` follow those of `tile`.
HWY_INLINE void link(RowTile& tile, const RowTile& next) {
  tile.linked = std::min(kLinked, next.count);
  for (int i = 0; i < tile.linked; ++i) tile.rows[2 * tile.count + i] = next.rows[i];
}

/// Rows to fetch while others are read, one for one.
struct Fetch {
  const std::byte* const* rows = nullptr;
  int count = 0;
};

HWY_INLINE float read_scale(const std::byte* row, std::uint32_t offset) {
  float scale;
  std::memcpy(&scale, row + offset, sizeof scale);
  return scale;
}

/// Fetches bytes [from, to) of a row.
HWY_INLINE void prefetch_row(const std::byte* row, std::size_t from, std::size_t to) {
  for (std::size_t at = from; at < to; at += 64) prefetch_l2(row + at);
}

/// Queries in pair order: [g, d] floats.
template <KvType kType, class D>
HWY_INLINE void arrange_queries(D d, const float* query, int group, std::size_t dim, float* HWY_RESTRICT arranged) {
  const std::size_t all = static_cast<std::size_t>(group) * dim;
  if constexpr (VectorPair<kType>::kEvenOdd) {
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t at = 0; at < all; at += 2 * lanes) {
      for (std::size_t i = 0; i < lanes; ++i) {
        arranged[at + i] = query[at + 2 * i];
        arranged[at + lanes + i] = query[at + 2 * i + 1];
      }
    }
  } else {
    std::memcpy(arranged, query, all * sizeof(float));
  }
}

/// Sums of products before their lanes are added: at most eight lanes each, [query, row of a step].
using PartTag = hn::CappedTag<float, 8>;
constexpr std::size_t kPartLanes = hn::MaxLanes(PartTag());

#if HWY_TARGET == HWY_AVX3
/// The sums of four vectors of sixteen lanes: both halves of each added, then as sum_four adds eight lanes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void sum_four_halves(D d, V a, V b, V c, V e, float factor, float* HWY_RESTRICT sums) {
  const hn::Half<D> half;
  const V ab = hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  const V ce = hn::Add(hn::ConcatLowerLower(d, e, c), hn::ConcatUpperUpper(d, e, c));
  const V both = hn::Add(hn::InterleaveLower(d, ab, ce), hn::InterleaveUpper(d, ab, ce));
  const auto ac = hn::LowerHalf(half, both);
  const auto be = hn::UpperHalf(half, both);
  const auto all = hn::Add(hn::InterleaveLower(half, ac, be), hn::InterleaveUpper(half, ac, be));
  hn::StoreU(hn::Mul(fold_fours(half, all), hn::Set(D4(), factor)), D4(), sums);
}
#endif

/// Adds the products of one vector of each row with that of each query.
template <KvType kType, bool kOdd, int kQueries, int kRows, class D, class V = hn::Vec<D>>
HWY_INLINE void add_products(D d, const std::byte* const* rows, const float* HWY_RESTRICT queries, std::size_t dim,
                             std::size_t pair, V (&sums)[kQueries][kRows]) {
  V query[kQueries];
  for (std::size_t q = 0; q < kQueries; ++q) {
    query[q] = hn::LoadU(d, queries + q * dim + (2 * pair + (kOdd ? 1 : 0)) * hn::Lanes(d));
  }
  for (int r = 0; r < kRows; ++r) {
    const V row = kOdd ? VectorPair<kType>::second(d, rows[r], pair) : VectorPair<kType>::first(d, rows[r], pair);
    for (int q = 0; q < kQueries; ++q) sums[q][r] = hn::MulAdd(row, query[q], sums[q][r]);
  }
}

/// Products of a few rows with the queries. Each sum has one accumulator, whatever the others are.
template <KvType kType, int kQueries, int kRows, class D, class V = hn::Vec<D>>
HWY_INLINE void dot_rows(D d, const std::byte* const* rows, const float* HWY_RESTRICT queries, std::size_t dim,
                         V (&sums)[kQueries][kRows]) {
  for (int q = 0; q < kQueries; ++q) {
    for (int r = 0; r < kRows; ++r) sums[q][r] = hn::Zero(d);
  }
  const std::size_t pairs = dim / (2 * hn::Lanes(d));
  // With both in one loop the compiler (GCC 12) shares loads between them and has no registers left for the sums.
  for (std::size_t u = 0; u < pairs; ++u) add_products<kType, false>(d, rows, queries, dim, u, sums);
  for (std::size_t u = 0; u < pairs; ++u) add_products<kType, true>(d, rows, queries, dim, u, sums);
}

/// Queries in pair order, [group, d], and the factor of their scores.
struct QueryRows {
  const float* rows = nullptr;
  int group = 0;
  float scale = 1;
};

/// A few rows of a tile, and what to fetch meanwhile.
struct Step {
  const std::byte* const* rows = nullptr;
  int count = 0;
  std::size_t row_bytes = 0;
  Fetch fetch;
};

/// scores[q * kPaddedTile + r] = rows[r] . queries[q] * scale for the rows of a step, up to the next multiple of four.
/// Lanes are added for all rows together, through memory: behind each few rows it waited for their last products. Not
/// so where 16 lanes are halved first and the core looks further ahead (0.78 of the streamed bandwidth, not 0.73).
template <KvType kType, int kQueries, class D>
HWY_NOINLINE void dot_step(D d, const Step& step, const QueryRows& query, std::size_t dim, float* HWY_RESTRICT scores) {
  constexpr int kRows = kRowsTogether<kQueries>;
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  const hn::CappedTag<float, std::min(kPartLanes, kLanes)> part;
  HWY_ALIGN float parts[kLanes > kPartLanes ? 1 : kQueries * kRowStep * kPartLanes];
  for (int r = 0; r < step.count; r += kRows) {
    // A few at a time: more than the core has miss buffers for hold up the rows that are read.
    for (int f = r; f < std::min(r + kRows, step.fetch.count); ++f) prefetch_row(step.fetch.rows[f], 0, step.row_bytes);
    hn::Vec<D> sums[kQueries][kRows];
    dot_rows<kType>(d, step.rows + r, query.rows, dim, sums);
    for (int q = 0; q < kQueries; ++q) {
      if constexpr (kLanes > kPartLanes) {
        static_assert(kRows == 4);
        sum_four_halves(d, sums[q][0], sums[q][1], sums[q][2], sums[q][3], query.scale, scores + q * kPaddedTile + r);
      } else {
        for (int i = 0; i < kRows; ++i) {
          hn::StoreU(sums[q][i], d, parts + static_cast<std::size_t>(q * kRowStep + r + i) * kPartLanes);
        }
      }
    }
  }
  if constexpr (kLanes > kPartLanes) return;
  for (int q = 0; q < kQueries; ++q) {
    for (int r = 0; r < step.count; r += 4) {
      const float* at = parts + static_cast<std::size_t>(q * kRowStep + r) * kPartLanes;
      sum_four(part, hn::LoadU(part, at), hn::LoadU(part, at + kPartLanes), hn::LoadU(part, at + 2 * kPartLanes),
               hn::LoadU(part, at + 3 * kPartLanes), query.scale, scores + q * kPaddedTile + r);
    }
  }
}

/// The most queries that go together. Vectors narrower than the machine's only serve unusual dimensions.
template <class D>
constexpr int kMostQueries = hn::MaxLanes(D()) < hn::MaxLanes(hn::ScalableTag<float>()) ? 2 : kMaxQueries;

/// How many of the `left` queries go together: even shares, at most kMostQueries.
template <class D>
HWY_INLINE int query_share(int left) {
  const int shares = (left + kMostQueries<D> - 1) / kMostQueries<D>;
  return (left + shares - 1) / shares;
}

/// Calls `run` with the number of queries as a constant.
template <class D, class Run>
HWY_INLINE void with_queries(int queries, const Run& run) {
  constexpr int kMost = kMostQueries<D>;
  if (queries == 1) {
    run(std::integral_constant<int, 1>());
  } else if (queries == 2) {
    run(std::integral_constant<int, 2>());
  } else if (queries == 3) {
    run(std::integral_constant<int, std::min(3, kMost)>());
  } else {
    run(std::integral_constant<int, kMost>());
  }
}

/// Scores of q8_0 keys times the keys' scales.
template <KvType kType>
HWY_INLINE void scale_scores(const RowTile& tile, int queries, float* HWY_RESTRICT scores) {
  if constexpr (kType == KvType::q8_0) {
    float scales[kMaxTile];
    for (int i = 0; i < tile.count; ++i) scales[i] = read_scale(tile.k()[i], tile.scale[i]);
    for (int j = 0; j < queries; ++j) {
      float* row = scores + static_cast<std::size_t>(j) * kPaddedTile;
      for (int i = 0; i < tile.count; ++i) row[i] *= scales[i];
    }
  }
}

/// Scores of a tile: scores[j * kPaddedTile + i] of query j and entry i, scaled.
template <KvType kType, class D>
HWY_INLINE void score_tile(D d, const KvFormat& format, const RowTile& tile, const QueryRows& query, const Fetch& fetch,
                           float* HWY_RESTRICT scores) {
  const auto dim = static_cast<std::size_t>(format.dim);
  for (int i = 0; i < tile.count; i += kRowStep) {
    Step step{.rows = tile.k() + i, .count = std::min(kRowStep, tile.count - i), .row_bytes = format.row_bytes()};
    step.fetch = {fetch.rows + i, fetch.count - i};
    for (int j = 0; j < query.group;) {
      const int share = query_share<D>(query.group - j);
      float* to = scores + static_cast<std::size_t>(j) * kPaddedTile + i;
      const QueryRows part{query.rows + static_cast<std::size_t>(j) * dim, share, query.scale};
      with_queries<D>(
          share, [&](auto queries) HWY_ATTR { dot_step<kType, decltype(queries)::value>(d, step, part, dim, to); });
      j += share;
      step.fetch.count = 0;
    }
  }
  scale_scores<kType>(tile, query.group, scores);
}

/// Scores of entries [from, to) to their places: out[j * stride + i].
HWY_INLINE void write_scores(const RowTile& tile, std::int32_t from, std::int32_t to, const float* scores, int group,
                             float* out, std::size_t stride) {
  for (int j = 0; j < group; ++j) {
    float* row = out + static_cast<std::size_t>(j) * stride;
    const float* found = scores + static_cast<std::size_t>(j) * kPaddedTile;
    if (tile.count == to - from) {
      std::memcpy(row + from, found, static_cast<std::size_t>(tile.count) * sizeof(float));
    } else {
      std::fill(row + from, row + to, kMinusInfinity);
      for (int i = 0; i < tile.count; ++i) row[tile.entry[i]] = found[i];
    }
  }
}

/// Runs `run(tag)` with the widest vectors of which a row is a whole number of pairs.
template <class Run>
HWY_INLINE void with_row_tag(int dim, Run&& run) {
  const hn::ScalableTag<float> widest;
  if constexpr (hn::MaxLanes(widest) > 4) {
    if (static_cast<std::size_t>(dim) % (2 * hn::Lanes(widest)) == 0) {
      run(widest);
    } else {
      run(D4());
    }
  } else {
    run(widest);
  }
}

}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
