// How a launch shares its work: an equal split of the tiles of all (row, KV head, slice of queries) over its blocks, or
// of whole ones where they are alike, found on the device from what it reads, so that the host need not know a count.
// Every block adds up the weights of all work and lists the segments of its range; work that is cut between ranges
// leaves partial results, and the block that arrives last combines them. The ranges and the order of a sum depend on
// the work alone, whoever does it.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/arguments.h"
#include "glimpse/kernels/cuda/feed.cuh"
#include "glimpse/kernels/cuda/row_tables.cuh"

namespace glimpse::kernels::cuda {

/// The weight of a tile: of a page's slots, and of a list's, whose rows lie apart.
inline constexpr unsigned kRunWeight = 10;
inline constexpr unsigned kListWeight = 11;
inline constexpr unsigned kHeaviest = 11;

/// From this weight a block on, the last eighth of the work is cut into small ranges that go to whoever is free: some
/// processors of a device get less of its bandwidth than others. Not where most of it are lists, which take long to
/// begin.
inline constexpr unsigned kFreeFrom = 1280 * kRunWeight;
inline constexpr unsigned kLeastFree = 16 * kRunWeight;
inline constexpr int kFreeUnits = 32;  ///< fewer have too many parts each: adding those up takes longer than it saves

/// Below this weight a block few pieces begin ranges of their own. What the largest of those may have of an equal share
/// where the pieces are not so few, and tiles of a range, at least: smaller ones take longer to add up than to read.
inline constexpr unsigned kApartUpTo = 1024 * kRunWeight;
inline constexpr float kUnequal = 1.08F;
inline constexpr unsigned kLeastTiles = 4;

/// Pieces of more than kFewUnits that hardly differ go to blocks as wholes, so that nobody adds anything up, where the
/// longest range has at most so many tiles more than an equal share.
inline constexpr float kAlike = 1.08F;
inline constexpr unsigned kMostOver = 32 * kRunWeight;

inline constexpr int kFewUnits = 64;
inline constexpr int kUnitBytes = 88;

/// Segments that are listed at a time.
inline constexpr int kBatch = 8;

/// Of some pieces of work: their weights, how many they are, the weights of those that are lists, the extremes.
struct WorkSums {
  unsigned weight = 0, number = 0, lists = 0;
  unsigned least = ~0U, most = 0;

  __device__ void add(const WorkSums& other) {
    weight += other.weight;
    number += other.number;
    lists += other.lists;
    least = min(least, other.least);
    most = max(most, other.most);
  }
  __device__ WorkSums of_warp() const {
    return {__reduce_add_sync(~0U, weight), __reduce_add_sync(~0U, number), __reduce_add_sync(~0U, lists),
            __reduce_min_sync(~0U, least), __reduce_max_sync(~0U, most)};
  }
};

struct Share {
  Segment segments[kBatch];
  Segment mine[2];  ///< that this block combines: a range's first, its last, where others have a part of them
  unsigned sums[8];
  WorkSums of_warps[8];
  alignas(8) unsigned char units[kFewUnits * kUnitBytes];  ///< where there are few: what they read, at hand
  int last_arrived = 0;
  int waits = 0;
  unsigned range = 0;
};

/// number / by, below 2^21.
__device__ inline int quotient_of(int number, int by) {
  return static_cast<int>(__fdividef(static_cast<float>(number) + 0.5F, static_cast<float>(by)));
}

/// What a slice of one (row, KV head) reads.
struct Piece {
  unsigned tiles = 1;
  unsigned weight = kRunWeight;
  __device__ unsigned whole() const { return tiles * weight; }
};

/// What no sum is: of the values that are no numbers, arithmetic gives another one. It stands where a block's result is
/// not there yet.
inline constexpr unsigned kNothing = ~0U;
/// Whoever waits must not wait for ever, whatever arithmetic gave.
__device__ inline float told(float x) {
  return __float_as_uint(x) == kNothing ? __uint_as_float(kNothing >> 1) : x;
}
__device__ inline float4 seen(const float4* at) {
  float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(at)
               : "memory");
  return x;
}
__device__ inline bool is_there(const float4& x) {
  return __float_as_uint(x.x) != kNothing && __float_as_uint(x.y) != kNothing && __float_as_uint(x.z) != kNothing &&
         __float_as_uint(x.w) != kNothing;
}

/// The work of a launch as a row of weights, cut into ranges: block b has range b; what follows is for whoever is free.
/// Source: `int units()`; `Unit load(int unit)` reads what no kernel writes, `void settle(Unit&)` the rest;
/// `bool waits(const Unit&)`: a launch before may still write that; `void bring(std::byte* room)` copies what load()
/// reads to shared memory, `near_bytes()` in all, and `void bring_rest(int unit)` what settle() does, after which
/// load() gives both until forget(); `int pieces(const Unit&)`, of which a unit has `least_pieces()` at least; `Piece
/// piece(const Unit&, int)`; `void fill(Segment&, const Unit&, int piece)` for all but the tiles and the ranges. The
/// sum of the weights is below 2^32; launches are cut where it might not be.
template <class Source>
class Sharing {
 public:
  /// Begins the kernel, and waits for the launch before unless `early` lets it read old slots and settled sets at once.
  /// `room`: [room_bytes] of shared memory that is free until the first list().
  __device__ Sharing(Source& source, Share& share, unsigned* taken, bool early, std::byte* room, int room_bytes)
      : source_(source), share_(share), taken_(taken) {
    let_next_begin();
    const int units = source.units();
    few_ = units <= kFewUnits;
    if (!few_) {
      share_many(units, early, room, room_bytes);
      return;
    }
    // Of few units one warp reads what they are, as far as may be before the launch before is through.
    if (threadIdx.x < 32) {
      bool waits = !early;
#pragma unroll 1
      for (int u = static_cast<int>(threadIdx.x); u < units; u += 32) {
        kept(u) = source.load(u);
        waits |= source.waits(kept(u));
      }
      waits = __any_sync(~0U, waits);
      if (waits) wait_for_launch_before();
#pragma unroll 1
      for (int u = static_cast<int>(threadIdx.x); u < units; u += 32) source.settle(kept(u));
      if (threadIdx.x == 0) share.waits = waits;
    }
    __syncthreads();
    waited_ = share.waits != 0;
    if (waited_) wait_for_launch_before();
    const int each = (units + 31) / 32;
    first_ = min(units, static_cast<int>(threadIdx.x) % 32 * each);
    last_ = min(units, first_ + each);
    const WorkSums own = weigh();
    own_ = own.weight;
    const unsigned blocks = gridDim.x;
    total_ = __reduce_add_sync(~0U, own_);
    const unsigned number = __reduce_add_sync(~0U, own.number);
    if (total_ < kApartUpTo * blocks && number * 2 <= blocks && place(number)) return;
    before_ = sum_before(own_, total_);
    cut(units, __reduce_add_sync(~0U, own.lists));
  }

  /// This block's next range: false where none is left. The block synchronises.
  __device__ bool next() {
    if (started_ && !free_) return false;
    if (apart_) {
      started_ = true;
      return count_ > 0;
    }
    if (started_) {
      __syncthreads();
      if (threadIdx.x == 0) {
        const unsigned ranges = (total_ - fixed_ + each_free_ - 1) / each_free_;
        const unsigned taken = atomicAdd(taken_, 1U);
        if (taken + 1 == ranges + gridDim.x) *taken_ = 0;  // every block comes once in vain; this was the last
        share_.range = gridDim.x + taken;
      }
      __syncthreads();
      range_ = share_.range;
    } else {
      range_ = blockIdx.x;
      started_ = true;
    }
    low_ = start_of(range_);
    if (low_ >= total_) return false;
    high_ = start_of(range_ + 1);
    if (whole_) {
      index_ = static_cast<int>(max(before_, low_) - low_);
      count_ = static_cast<int>(min(high_, total_) - low_);
    } else {
      unsigned mine = 0;
      visit([&](const auto&, int, const Piece&, unsigned, unsigned, unsigned) { ++mine; });
      unsigned all = 0;
      index_ = static_cast<int>(sum_before(mine, all));
      count_ = static_cast<int>(all);
    }
    if (threadIdx.x < 2) share_.mine[threadIdx.x].ranges = 1;
    return true;
  }
  __device__ unsigned range() const {
    return range_;
  }
  /// Whether the block has waited for the launch before.
  __device__ bool waited() const {
    return waited_;
  }
  __device__ void set_waited() {
    waited_ = true;
  }
  /// Whether every block has at most one range, all of one piece.
  __device__ bool apart() const {
    return apart_;
  }

  /// Segments of the range.
  __device__ int count() const {
    return count_;
  }

  /// Lists segments [from, from + kBatch); the block synchronises.
  __device__ void list(int from) {
    if (apart_) return;  // place() has
    __syncthreads();
    if (even_ > 0) {
      const int place = static_cast<int>(threadIdx.x), piece = static_cast<int>(low_) + from + place;
      if (place < kBatch && from + place < count_) list_whole(share_.segments[place], piece);
    } else {
      int index = index_;
      visit([&](const auto& unit, int p, const Piece& piece, unsigned at, unsigned begin, unsigned end) {
        const int place = index++ - from;
        if (place < 0 || place >= kBatch || (few_ && threadIdx.x >= 32)) return;
        Segment s;
        source_.fill(s, unit, p);
        s.begin = static_cast<int>(begin);
        s.end = static_cast<int>(end);
        s.first_range = range_of(at);
        s.ranges = whole_ ? 1 : range_of(at + piece.whole() - piece.weight) - s.first_range + 1;
        share_.segments[place] = s;
      });
    }
    near_ = false;
    source_.forget();
    __syncthreads();
  }

 private:
  using Unit = typename Source::Unit;
  /// Of many units each thread weighs some, as far as may be before the launch before is through. Their tables come to
  /// shared memory as a whole: a thread that read its own units from the device's memory would wait for each in turn.
  __device__ void share_many(int units, bool early, std::byte* room, int room_bytes) {
    const int threads = static_cast<int>(blockDim.x), each = (units + threads - 1) / threads;
    first_ = min(units, static_cast<int>(threadIdx.x) * each);
    last_ = min(units, first_ + each);
    if (!early) wait_for_launch_before();
    if (source_.near_bytes() <= room_bytes) {
      source_.bring(room);
      close_copies();
      wait_copies<0>();
      __syncthreads();
    } else {
      room = nullptr;
    }
    bool waits = false;
#pragma unroll 1
    for (int u = first_; u < last_; ++u) waits |= source_.waits(source_.load(u));
    // For the block as a whole: a count that one warp reads early would bring what others wait for into the first-level
    // cache.
    waited_ = __syncthreads_or(!early || waits) != 0;
    if (waited_) wait_for_launch_before();
    if (room != nullptr) {
#pragma unroll 1
      for (int u = first_; u < last_; ++u) source_.bring_rest(u);
      close_copies();
      wait_copies<0>();
      near_ = true;
    }
    const WorkSums own = weigh(), of_warp = own.of_warp();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 == 0) share_.of_warps[warp] = of_warp;
    __syncthreads();
    WorkSums before, all;
    for (int w = 0; w < threads / 32; ++w) {
      if (w == warp) before = all;
      all.add(share_.of_warps[w]);
    }
    total_ = all.weight;
    whole_ = are_alike(all);
    own_ = whole_ ? own.number : own.weight;
    before_ = (whole_ ? before.number : before.weight) + sum_of_lanes(own_) - own_;
    if (whole_) {
      total_ = fixed_ = all.number;
      each_ = (all.number + gridDim.x - 1) / gridDim.x;
      const int least = source_.least_pieces();
      even_ = static_cast<int>(all.number) == units * least ? least : 0;
    } else {
      cut(units, all.lists);
    }
  }
  /// The piece of that number where pieces stay whole and units have equally many.
  __device__ void list_whole(Segment& to, int piece) const {
    const int unit = quotient_of(piece, even_), p = piece - unit * even_;
    const Unit made = unit_of(unit);
    Segment s;
    source_.fill(s, made, p);
    s.begin = 0;
    s.end = static_cast<int>(source_.piece(made, p).tiles);
    s.first_range = range_;
    s.ranges = 1;
    to = s;
  }
  /// Whether pieces go to blocks as wholes.
  __device__ static bool are_alike(const WorkSums& all) {
    const unsigned blocks = gridDim.x, each = (all.number + blocks - 1) / blocks;
    const float mean = __fdividef(static_cast<float>(all.weight), static_cast<float>(all.number));
    const float equal = __fdividef(static_cast<float>(all.weight), static_cast<float>(blocks));
    return all.weight < kFreeFrom * blocks && static_cast<float>(each) * mean <= equal + kMostOver &&
           static_cast<float>(all.most) <= kAlike * mean && static_cast<float>(each * all.most) <= equal + kMostOver &&
           static_cast<float>(all.least) * kAlike >= mean;
  }
  /// Of this thread's units.
  __device__ WorkSums weigh() const {
    WorkSums sums;
#pragma unroll 1
    for (int u = first_; u < last_; ++u) {
      const Unit unit = unit_of(u);
      const int pieces = source_.pieces(unit);
#pragma unroll 1
      for (int p = 0; p < pieces; ++p) {
        const Piece piece = source_.piece(unit, p);
        const unsigned whole = piece.whole();
        sums.add({whole, 1, piece.weight == kListWeight ? whole : 0, whole, whole});
      }
    }
    return sums;
  }
  /// Equal ranges of all weights, of which `lists` are those of lists.
  __device__ void cut(int units, unsigned lists) {
    const unsigned blocks = gridDim.x;
    free_ = total_ >= kFreeFrom * blocks && units >= kFreeUnits && lists <= total_ / 2;
    const unsigned fixed = free_ ? total_ / 8 * 7 : total_;
    each_ = max((fixed + blocks - 1) / blocks, kHeaviest);
    fixed_ = min(total_, each_ * blocks);
    each_free_ = free_ ? max((total_ - fixed_ + 4 * blocks - 1) / (4 * blocks), kLeastFree) : kLeastFree;
  }
  static_assert(sizeof(Unit) <= kUnitBytes && alignof(Unit) <= 8);
  __device__ Unit& kept(int unit) {
    return reinterpret_cast<Unit*>(share_.units)[unit];
  }
  __device__ Unit unit_of(int unit) const {
    if (few_) return reinterpret_cast<const Unit*>(share_.units)[unit];
    Unit made = source_.load(unit);
    if (!near_) source_.settle(made);
    return made;
  }
  /// Sum over this lane and those before it.
  __device__ static unsigned sum_of_lanes(unsigned own) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    unsigned sum = own;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const unsigned other = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += other;
    }
    return sum;
  }
  /// Sum over the threads before this one; `total` is that of all. Of few units every warp has all, so that none waits
  /// for another.
  __device__ unsigned sum_before(unsigned own, unsigned& total) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const unsigned sum = sum_of_lanes(own);
    if (few_) {
      total = __shfl_sync(~0U, sum, 31);
      return sum - own;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int warps = static_cast<int>(blockDim.x) / 32;
    __syncthreads();
    if (lane == 31) share_.sums[warp] = sum;
    __syncthreads();
    unsigned before = 0;
    total = 0;
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      if (w >= warps) break;
      if (w < warp) before += share_.sums[w];
      total += share_.sums[w];
    }
    return before + sum - own;
  }
  /// Little work: every one of `number` pieces begins a range of its own, so that no block waits for the results of
  /// two. Each has one range, and of those left as many as its weight asks for. Lists what falls to this block; false
  /// where the pieces are many and too unequal for that.
  __device__ bool place(unsigned number) {
    const float scale = __fdividef(static_cast<float>(gridDim.x - number) * (1 - 1e-6F), static_cast<float>(total_));
    const auto ranges_of = [&](const Piece& piece) {
      return min(max(piece.tiles / kLeastTiles, 1U),
                 1 + static_cast<unsigned>(static_cast<float>(piece.whole()) * scale));
    };
    unsigned own = 0;
    float most = 0;  // of a range
#pragma unroll 1
    for (int u = first_; u < last_; ++u) {
      const Unit unit = unit_of(u);
      const int pieces = source_.pieces(unit);
#pragma unroll 1
      for (int p = 0; p < pieces; ++p) {
        const Piece piece = source_.piece(unit, p);
        const unsigned ranges = ranges_of(piece);
        own += ranges;
        most = fmaxf(most, __fdividef(static_cast<float>(piece.whole()), static_cast<float>(ranges)));
      }
    }
    if (number * 4 > gridDim.x) {
      most = __uint_as_float(__reduce_max_sync(~0U, __float_as_uint(most)));
      const float equal = __fdividef(static_cast<float>(total_), static_cast<float>(gridDim.x));
      if (most > fmaxf(kUnequal * equal, 2 * kLeastTiles * kHeaviest)) return false;
    }
    apart_ = true;
    unsigned all = 0;
    unsigned at = sum_before(own, all);
    range_ = blockIdx.x;
    count_ = range_ < all ? 1 : 0;
    if (threadIdx.x < 2) share_.mine[threadIdx.x].ranges = 1;
    if (threadIdx.x < 32 && range_ >= at && range_ < at + own) {
#pragma unroll 1
      for (int u = first_; u < last_; ++u) {
        const Unit unit = unit_of(u);
        const int pieces = source_.pieces(unit);
#pragma unroll 1
        for (int p = 0; p < pieces; ++p) {
          const Piece piece = source_.piece(unit, p);
          const unsigned ranges = ranges_of(piece);
          if (range_ >= at && range_ < at + ranges) {
            Segment s;
            source_.fill(s, unit, p);
            s.begin = begin_of(piece, range_ - at, ranges);
            s.end = begin_of(piece, range_ - at + 1, ranges);
            s.first_range = at;
            s.ranges = ranges;
            share_.segments[0] = s;
          }
          at += ranges;
        }
      }
    }
    __syncthreads();
    return true;
  }
  /// The first tile of the i-th of a piece's ranges; they differ by one tile at most, or a few of millions.
  __device__ static int begin_of(const Piece& piece, unsigned i, unsigned ranges) {
    if (i == ranges) return static_cast<int>(piece.tiles);
    return static_cast<int>(__fdividef(static_cast<float>(piece.tiles * i) + 0.5F, static_cast<float>(ranges)));
  }
  __device__ unsigned start_of(unsigned range) const {
    if (range <= gridDim.x) return min(range * each_, fixed_);
    return min(fixed_ + (range - gridDim.x) * each_free_, total_);
  }
  __device__ unsigned range_of(unsigned at) const {
    return at < fixed_ ? at / each_ : gridDim.x + (at - fixed_) / each_free_;
  }
  /// Tiles of a piece that start before `where`.
  __device__ static unsigned tiles_before(unsigned where, unsigned at, const Piece& piece) {
    if (where <= at) return 0;
    const unsigned room = where - at;  // weights are constants: no division
    return min(piece.tiles, piece.weight == kRunWeight ? (room + kRunWeight - 1) / kRunWeight
                                                       : (room + kListWeight - 1) / kListWeight);
  }

  /// visit(unit, piece number, piece, its start, first tile, last tile) for this thread's pieces that fall to the
  /// range.
  template <class Visit>
  __device__ void visit(const Visit& visit) const {
    if (before_ >= high_ || before_ + own_ <= low_) return;
    unsigned at = before_;
#pragma unroll 1
    for (int u = first_; u < last_; ++u) {
      const Unit unit = unit_of(u);
      const int pieces = source_.pieces(unit);
#pragma unroll 1
      for (int p = 0; p < pieces; ++p) {
        const Piece piece = source_.piece(unit, p);
        const unsigned begin = whole_ ? 0 : tiles_before(low_, at, piece);
        const unsigned end = whole_ ? (at >= low_ && at < high_ ? piece.tiles : 0) : tiles_before(high_, at, piece);
        if (begin < end) visit(unit, p, piece, at, begin, end);
        at += whole_ ? 1 : piece.whole();
      }
    }
  }

  Source& source_;
  Share& share_;
  unsigned* taken_;
  int first_ = 0, last_ = 0, index_ = 0, count_ = 0;
  unsigned before_ = 0, own_ = 0, total_ = 0, low_ = 0, high_ = 0;
  unsigned range_ = 0, each_ = 1, fixed_ = 0, each_free_ = 1;
  bool few_ = false, free_ = false, started_ = false;
  bool apart_ = false;  ///< every piece begins a range
  bool whole_ = false;  ///< weights are numbers of pieces: none is cut
  bool near_ = false;   ///< the source has all in shared memory
  int even_ = 0;        ///< pieces of each unit, where none is cut and units have equally many
  bool waited_ = false;
};

/// Where a range's part of shared work goes, and where the i-th range of it has its own.
__device__ inline std::size_t own_partial(const Segment& s, unsigned range) {
  return 2 * range + (s.begin == 0 ? 1 : 0);
}
__device__ inline std::size_t partial_of(const Segment& s, int i) {
  return 2 * static_cast<std::size_t>(s.first_range + i) + (i == 0 ? 1 : 0);
}

/// All threads have written their partial results: true in the block that comes last. The block synchronises.
__device__ inline bool arrive_last(const Segment& s, const Partials& partials, Share& share) {
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned before = 0;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(partials.arrived + s.first_range)
                 : "memory");
    share.last_arrived = before + 1 == s.ranges ? 1 : 0;
    if (share.last_arrived != 0) partials.arrived[s.first_range] = 0;
  }
  __syncthreads();
  return share.last_arrived != 0;
}

/// Brings a table into the second-level cache, as far as a line for each thread goes.
__device__ inline void warm(const void* table, std::size_t bytes) {
  const std::size_t at = threadIdx.x * 128UL;
  if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(table) + at));
}

/// Waits for the launch before this one. What is certain to be read is asked for meanwhile.
__device__ inline void begin_kernel(const Cache& cache, bool early) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  let_next_begin(early);
  warm(cache.sequence, static_cast<std::size_t>(cache.rows) * sizeof *cache.sequence);
  warm(cache.behind, static_cast<std::size_t>(cache.rows) * sizeof *cache.behind);
  warm(cache.views, static_cast<std::size_t>(cache.sequences) * cache.kv_heads * sizeof(HeadView));
  wait_for_launch_before();
#endif
}

__device__ inline int seen_slots(const Cache& cache, int row, const HeadView& view) {
  return view.slots - cache.behind[row] + 1;
}
__device__ inline const HeadView& view_of(const Cache& cache, int row, int head) {
  return cache.views[static_cast<std::size_t>(cache.sequence[row]) * cache.kv_heads + head];
}

}  // namespace glimpse::kernels::cuda
