// How a launch shares its work: an equal split of the tiles of all (row, KV head, slice of queries) over its blocks,
// found on the device from what it reads, so that the host need not know a count. Every block adds up the weights of
// all work and lists the segments that fall to it; work that is cut between blocks leaves partial results, and the
// block that arrives last combines them, always in the same order.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/arguments.h"
#include "glimpse/kernels/cuda/feed.cuh"

namespace glimpse::kernels::cuda {

/// The weight of a tile: of a page's slots, and of a list's, whose rows lie apart.
inline constexpr int kRunWeight = 10;
inline constexpr int kListWeight = 11;
inline constexpr int kHeaviest = 11;

/// Segments that are listed at a time.
inline constexpr int kBatch = 24;

struct Share {
  Segment segments[kBatch];
  unsigned long long sums[33];
  int last_arrived = 0;
};

/// Exclusive sum over the block's threads; `total` is that of all.
__device__ inline unsigned long long sum_before(unsigned long long own, unsigned long long* sums,
                                                unsigned long long& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  unsigned long long sum = own;
  for (int step = 1; step < 32; step *= 2) {
    const unsigned long long other = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  unsigned long long before = 0;
  total = 0;
  for (int w = 0; w < warps; ++w) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  return before + sum - own;
}

/// What a slice of one (row, KV head) reads.
struct Piece {
  int tiles = 1;
  int weight = kRunWeight;
  __device__ unsigned long long whole() const {
    return static_cast<unsigned long long>(tiles) * static_cast<unsigned long long>(weight);
  }
};

/// Source: `int units()`; `Unit load(int unit)`; `int pieces(const Unit&)`; `Piece piece(const Unit&, int)`;
/// `void fill(Segment&, const Unit&, int piece)` for all but the tiles and the blocks.
template <class Source>
class Sharing {
 public:
  using Whole = unsigned long long;

  __device__ Sharing(const Source& source, Share& share) : source_(source), share_(share) {
    const int units = source.units();
    const int threads = static_cast<int>(blockDim.x);
    const int each = (units + threads - 1) / threads;
    first_ = min(units, static_cast<int>(threadIdx.x) * each);
    last_ = min(units, first_ + each);
    Whole own = 0;
    for (int u = first_; u < last_; ++u) {
      const auto unit = source.load(u);
      const int pieces = source.pieces(unit);
      for (int p = 0; p < pieces; ++p) own += source.piece(unit, p).whole();
    }
    before_ = sum_before(own, share.sums, total_);
    own_ = own;
    blocks_ = min(static_cast<Whole>(gridDim.x), max(total_ / kHeaviest, Whole{1}));
    if (blockIdx.x >= blocks_) return;
    low_ = start_of(blockIdx.x);
    high_ = start_of(blockIdx.x + 1);
    unsigned mine = 0;
    visit([&](const auto&, int, const Piece&, Whole, int, int) { ++mine; });
    Whole all = 0;
    index_ = static_cast<int>(sum_before(mine, share.sums, all));
    count_ = static_cast<int>(all);
  }

  /// Segments of this block.
  __device__ int count() const { return count_; }

  /// Lists segments [from, from + kBatch); the block synchronises.
  __device__ void list(int from) {
    __syncthreads();
    int index = index_;
    visit([&](const auto& unit, int p, const Piece& piece, Whole at, int begin, int end) {
      const int place = index++ - from;
      if (place < 0 || place >= kBatch) return;
      Segment s;
      source_.fill(s, unit, p);
      s.begin = begin;
      s.end = end;
      s.first_block = block_of(at);
      s.blocks = block_of(at + static_cast<Whole>(piece.tiles - 1) * static_cast<Whole>(piece.weight)) -
                 s.first_block + 1;
      share_.segments[place] = s;
    });
    __syncthreads();
  }

 private:
  __device__ Whole start_of(unsigned block) const { return (block * total_ + blocks_ - 1) / blocks_; }
  __device__ int block_of(Whole at) const { return static_cast<int>(at * blocks_ / total_); }

  /// visit(unit, piece number, piece, its start, first tile, last tile) for this thread's pieces that fall to the block.
  template <class Visit>
  __device__ void visit(const Visit& visit) const {
    if (before_ >= high_ || before_ + own_ <= low_) return;
    Whole at = before_;
    for (int u = first_; u < last_; ++u) {
      const auto unit = source_.load(u);
      const int pieces = source_.pieces(unit);
      for (int p = 0; p < pieces; ++p) {
        const Piece piece = source_.piece(unit, p);
        const auto weight = static_cast<Whole>(piece.weight);
        const auto tiles = static_cast<Whole>(piece.tiles);
        const Whole begin = at >= low_ ? 0 : min(tiles, (low_ - at + weight - 1) / weight);
        const Whole end = at >= high_ ? 0 : min(tiles, (high_ - at + weight - 1) / weight);
        if (begin < end) visit(unit, p, piece, at, static_cast<int>(begin), static_cast<int>(end));
        at += piece.whole();
      }
    }
  }

  const Source& source_;
  Share& share_;
  int first_ = 0, last_ = 0, index_ = 0, count_ = 0;
  Whole before_ = 0, own_ = 0, total_ = 0, low_ = 0, high_ = 0, blocks_ = 1;
};

/// Where this block's part of shared work goes, and where that of another block of it lies.
__device__ inline std::size_t own_partial(const Segment& s) { return 2 * blockIdx.x + (s.begin == 0 ? 1 : 0); }
__device__ inline std::size_t partial_of(const Segment& s, int i) {
  return 2 * static_cast<std::size_t>(s.first_block + i) + (i == 0 ? 1 : 0);
}

/// All threads have written their partial results: true in the block that comes last. The block synchronises.
__device__ inline bool arrive_last(const Segment& s, const Partials& partials, Share& share) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned before = atomicAdd(partials.arrived + s.first_block, 1U);
    share.last_arrived = before + 1 == static_cast<unsigned>(s.blocks) ? 1 : 0;
    if (share.last_arrived != 0) partials.arrived[s.first_block] = 0;
    __threadfence();
  }
  __syncthreads();
  return share.last_arrived != 0;
}

__device__ inline int seen_slots(const Cache& cache, int row, const HeadView& view) {
  return view.slots - cache.behind[row] + 1;
}
__device__ inline const HeadView& view_of(const Cache& cache, int row, int head) {
  return cache.views[static_cast<std::size_t>(cache.sequence[row]) * cache.kv_heads + head];
}

}  // namespace glimpse::kernels::cuda
