// Sets from scores: the best units by their pooled values, exactly, ties to the lower unit. A choice is the work of a
// cluster of blocks (of one block where the device has no clusters): each pools its share of the units into keys that
// order as the values do and keeps them in shared memory; rounds of 256 counters, each over a narrower range, find
// the key of the last one taken; then the sets are written in order.
#pragma once

#include <cooperative_groups.h>

#include "glimpse/kernels/cuda/ranks.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace selection {

using Wide = unsigned long long;

constexpr int kThreads = 512;
constexpr int kDigits = 256;
constexpr int kCopies = 16;  ///< of the counters: threads of a warp seldom meet at one
constexpr int kClusterBlocks = 8;
constexpr double kUnitOfMass = 4398046511104.0;  ///< 2^42: sums of whole numbers do not depend on their order

/// e^x to 2^-22 or so, 0 below 2^-126: the product with log2(e) in two parts.
__device__ inline float exp_of(float x) {
  x = fmaxf(x, -200.0F);
  constexpr float kHigh = 1.4426950408889634F, kLow = 1.925963033500e-8F;
  const float high = x * kHigh;
  const float low = fmaf(x, kHigh, -high) + x * kLow;
  return exp2_of(high) * fmaf(low, kLogOf2, 1.0F);
}

/// The value that order_of (ranks.cuh) made a key of.
__device__ inline float value_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}
constexpr std::uint32_t kZeroKey = 0x80000000U;
__device__ inline Wide mass_of(std::uint32_t key) {
  return key <= kZeroKey ? 0 : __double2ull_rn(fmin(static_cast<double>(value_of(key)), 1048576.0) * kUnitOfMass);
}

struct Room {
  std::uint32_t counters[kDigits * kCopies];
  Wide totals[2][kDigits];  ///< of this block, read by the others of the cluster
  Wide masses[kDigits];
  Wide warp_sums[kThreads / 32];
  std::uint32_t bounds[2];  ///< least and largest key of this block
  Wide held;                ///< what is always in, of this block
  int taken[2];             ///< of this block: surely, and units that equal the last one taken
  int warp_taken[kThreads / 32][2];
  std::uint32_t digit;
  Wide left;
};

constexpr int kRoomPieces = (static_cast<int>(sizeof(Room)) + 15) / 16;
constexpr std::size_t kRoomBytes = kRoomPieces * 16;

/// Which units are taken: all of a larger key, and so many that equal it, the lowest first.
struct Cut {
  std::uint32_t key = ~0U;
  Wide equal = 0;
};

template <int kBlocks, int kThreads>
class Selection {
  static constexpr int kWarps = kThreads / 32;

 public:
  __device__ Selection(const SelectArguments& of, Room& room, std::uint32_t* keys)
      : of_(of), room_(room), choice_(of.choices[blockIdx.x / kBlocks]) {
    rank_ = static_cast<int>(blockIdx.x % kBlocks);
    head_units_ = choice_.head_units;
    tail_units_ = choice_.tail_units;
    const HeadView& view = view_of(of.cache, choice_.row, choice_.head);
    slots_ = seen_slots(of.cache, choice_.row, view);
    units_ = (slots_ + choice_.block - 1) / choice_.block;
    scored_ = choice_.by_unit != 0 ? units_ : slots_;
    each_ = choice_.by_unit != 0 ? 1 : choice_.block;
    const int share = ((units_ + kBlocks - 1) / kBlocks + 31) / 32 * 32;
    first_ = min(units_, rank_ * share);
    mine_ = min(units_ - first_, share);
    keys_ = of.spill != nullptr ? of.spill + static_cast<std::size_t>(blockIdx.x) * of.share : keys;
  }

  __device__ void run() {
    if (threadIdx.x == 0) room_.held = 0;
    if (mine_ > 0 && threadIdx.x < 4 && mine_ + static_cast<int>(threadIdx.x) < (mine_ + 3) / 4 * 4) {
      keys_[mine_ + static_cast<int>(threadIdx.x)] = 0;  // keys are read four at a time
    }
    __syncthreads();
    pool();
    __syncthreads();
    Cut cut;
    if (choice_.rule == ChoiceRule::threshold) {
      cut.key = least_key(choice_.value) - 1;
    } else if (choice_.rule == ChoiceRule::count) {
      if (choice_.wanted > 0) cut = search<false>(static_cast<Wide>(choice_.wanted));
    } else {
      const Wide held = total_held();
      const double wanted = choice_.value * kUnitOfMass;
      const Wide all = wanted > 0 ? __double2ull_ru(fmin(wanted, 9.0e18)) : 0;
      if (all > held) cut = search<true>(all - held);
    }
    write(cut);
    synchronise();  // nobody leaves while others read its shared memory
  }

 private:
  __device__ static void synchronise() {
    if constexpr (kBlocks > 1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      cooperative_groups::this_cluster().sync();
#endif
    } else {
      __syncthreads();
    }
  }
  /// The same object in the shared memory of another block of the cluster.
  template <class T>
  __device__ static const T* of_block(const T* own, int block) {
    if constexpr (kBlocks > 1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      return cooperative_groups::this_cluster().map_shared_rank(own, block);
#endif
    }
    return own;
  }

  __device__ bool always_in(int unit) const {
    return unit < head_units_ || unit >= tail_units_;
  }
  __device__ static std::uint32_t least_key(double value) {
    float least = static_cast<float>(value);
    if (static_cast<double>(least) < value) least = nextafterf(least, INFINITY);
    const std::uint32_t key = order_of(least);
    return key == 0 ? 1 : key;
  }

  /// The scores of four slots from `slot` for one query head (those behind the end: -inf).
  __device__ void scores_of(std::size_t query, int slot, float (&x)[4]) const {
    const float* const from = of_.scores + query * of_.stride + slot;
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = slot + e < scored_ ? from[e] : -INFINITY;
  }
  /// pooled() where KV heads are pooled otherwise than their groups are.
  __device__ __noinline__ void pooled_apart(int slot, float (&values)[4]) const {
    const bool of_mean = choice_.pooling == Pooling::probability_of_mean;
    const bool probability =
        choice_.pooling == Pooling::mean_probability || choice_.pooling == Pooling::max_probability;
    const bool largest = choice_.pooling == Pooling::max_probability || choice_.pooling == Pooling::max_score;
    const bool across = choice_.across == Across::max || (choice_.across == Across::as_group && largest);
    const int first = choice_.query < 0 ? 0 : choice_.query;
    const int last = choice_.query < 0 ? of_.group : choice_.query + 1;
    for (float& value : values) value = across ? -INFINITY : 0.0F;
    for (int head = choice_.head; head < choice_.head + choice_.heads; ++head) {
      const std::size_t at = (static_cast<std::size_t>(choice_.row) * of_.cache.kv_heads + head) * of_.group;
      float own[4];
      for (float& value : own) value = largest ? -INFINITY : 0.0F;
      for (int query = first; query < last; ++query) {
        const float lse = of_.lse[at + query];
        float x[4];
        scores_of(at + query, slot, x);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (probability) x[e] = lse == -INFINITY ? 0.0F : exp_of(x[e] - lse);
          own[e] = largest ? fmaxf(own[e], x[e]) : own[e] + x[e];
        }
      }
      const float lse =
          of_mean ? of_.mean_lse[blockIdx.x / kBlocks * of_.cache.kv_heads + (head - choice_.head)] : 0.0F;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!largest) own[e] *= 1.0F / static_cast<float>(last - first);
        if (of_mean) own[e] = lse == -INFINITY ? 0.0F : exp_of(own[e] - lse);
        values[e] = across ? fmaxf(values[e], own[e]) : values[e] + own[e];
      }
    }
    const float share = across ? 1.0F : 1.0F / static_cast<float>(choice_.heads);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = slot + e < scored_ ? values[e] * share : -INFINITY;
  }
  /// The pooled values of four slots (or units, where these have scores) from `slot` (those behind the end: -inf).
  __device__ void pooled(int slot, float (&values)[4]) const {
    if (choice_.across != Across::as_group || choice_.pooling == Pooling::probability_of_mean) {
      return pooled_apart(slot, values);
    }
    const bool probability =
        choice_.pooling == Pooling::mean_probability || choice_.pooling == Pooling::max_probability;
    const bool largest = choice_.pooling == Pooling::max_probability || choice_.pooling == Pooling::max_score;
    const int first = choice_.query < 0 ? 0 : choice_.query;
    const int last = choice_.query < 0 ? of_.group : choice_.query + 1;
    for (float& value : values) value = largest ? -INFINITY : 0.0F;
    for (int head = choice_.head; head < choice_.head + choice_.heads; ++head) {
      const std::size_t at = (static_cast<std::size_t>(choice_.row) * of_.cache.kv_heads + head) * of_.group;
#pragma unroll 4
      for (int query = first; query < last; ++query) {
        const float* const from = of_.scores + (at + query) * of_.stride + slot;
        const float lse = of_.lse[at + query];
        float x[4];
        if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && slot + 3 < scored_) {
          const float4 four = __ldg(reinterpret_cast<const float4*>(from));
          x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) x[e] = slot + e < scored_ ? from[e] : -INFINITY;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (probability) x[e] = lse == -INFINITY ? 0.0F : exp_of(x[e] - lse);
          values[e] = largest ? fmaxf(values[e], x[e]) : values[e] + x[e];
        }
      }
    }
    const float share = largest ? 1.0F : 1.0F / static_cast<float>((last - first) * choice_.heads);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = slot + e < scored_ ? values[e] * share : -INFINITY;
  }

  __device__ void pool() {
    const int block = each_;
    const bool mass = choice_.rule == ChoiceRule::mass;
    if (block > 1 && mass) {
      sum_units();
    } else {
      if (block > 1) {
        for (int i = static_cast<int>(threadIdx.x); i < mine_; i += kThreads) keys_[i] = 0;
        __syncthreads();
      }
      const int begin = first_ * block;
      const int end = min(scored_, (first_ + mine_) * block);
#pragma unroll 2
      for (int slot = begin + static_cast<int>(threadIdx.x) * 4; slot < end; slot += kThreads * 4) {
        float values[4];
        pooled(slot, values);
        if (block == 1 && !mass) {
          put_four(slot, values);
          continue;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (slot + e >= end) continue;
          const std::uint32_t key = order_of(values[e]);
          if (block == 1) {
            put(slot + e - first_, key);
          } else if (!always_in((slot + e) / block)) {
            atomicMax(keys_ + ((slot + e) / block - first_), key);
          }
        }
      }
    }
  }
  /// The keys of four neighbouring units of one slot; behind the end: 0, as values there are -inf.
  __device__ void put_four(int unit, const float (&values)[4]) {
    uint4 keys = make_uint4(order_of(values[0]), order_of(values[1]), order_of(values[2]), order_of(values[3]));
    if (unit < head_units_ || unit + 3 >= tail_units_) {
      if (always_in(unit)) keys.x = 0;
      if (always_in(unit + 1)) keys.y = 0;
      if (always_in(unit + 2)) keys.z = 0;
      if (always_in(unit + 3)) keys.w = 0;
    }
    *reinterpret_cast<uint4*>(keys_ + (unit - first_)) = keys;
  }
  /// A unit's key; what is always in takes no part in the search.
  __device__ void put(int i, std::uint32_t key) {
    const int unit = first_ + i;
    if (choice_.rule == ChoiceRule::mass && always_in(unit) &&
        (unit < choice_.head_units || choice_.tail_counts != 0)) {
      atomicAdd(&room_.held, mass_of(key));
    }
    keys_[i] = always_in(unit) ? 0 : key;
  }
  __device__ void sum_units() {
    for (int i = static_cast<int>(threadIdx.x); i < mine_; i += kThreads) {
      const int begin = (first_ + i) * each_;
      const int end = min(scored_, begin + each_);
      double sum = 0;
      for (int slot = begin; slot < end; slot += 4) {
        float values[4];
        pooled(slot, values);
        for (int e = 0; e < 4; ++e) sum += slot + e < end ? values[e] : 0.0F;
      }
      put(i, order_of(static_cast<float>(sum)));
    }
  }
  __device__ Wide total_held() {
    synchronise();
    Wide held = 0;
    for (int b = 0; b < kBlocks; ++b) held += *of_block(&room_.held, b);
    return held;
  }

  /// The least and the largest key that can be chosen, of all blocks; false where there is none.
  template <bool kMass>
  __device__ bool bounds(std::uint32_t& least, std::uint32_t& most) {
    std::uint32_t low = ~0U, high = 0;
    for (int i = static_cast<int>(threadIdx.x) * 4; i < mine_; i += kThreads * 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(keys_ + i);
      for (const std::uint32_t key : {four.x, four.y, four.z, four.w}) {
        if (key <= (kMass ? kZeroKey : 0U)) continue;
        low = min(low, key);
        high = max(high, key);
      }
    }
    if (threadIdx.x == 0) room_.bounds[0] = ~0U, room_.bounds[1] = 0;
    __syncthreads();
    low = __reduce_min_sync(~0U, low);
    high = __reduce_max_sync(~0U, high);
    if (threadIdx.x % 32 == 0) {
      atomicMin(&room_.bounds[0], low);
      atomicMax(&room_.bounds[1], high);
    }
    synchronise();
    least = ~0U, most = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const std::uint32_t* const other = of_block(room_.bounds, b);
      least = min(least, other[0]);
      most = max(most, other[1]);
    }
    return most >= least;
  }

  /// The cut that takes the best units until `wanted` of them, or of their mass, is reached. Counters divide the range
  /// of keys, then that of the counter at which it is reached, until that is one key.
  template <bool kMass>
  __device__ Cut search(Wide wanted) {
    const Cut all{kMass ? kZeroKey : 0U, 0};
    std::uint32_t base = 0, most = 0;
    if (!bounds<kMass>(base, most)) return all;
    int shift = max(0, 32 - __clz(most - base) - 8);
    std::uint32_t extent = most - base;
    Wide left = wanted;
    for (int round = 0;; ++round) {
      count<kMass>(base, extent, round, shift);
      synchronise();
      if (!find(left, round)) return all;  // only in the first round: all that can be chosen
      base += room_.digit << shift;
      left = room_.left;
      if (shift == 0) break;
      extent = (1U << shift) - 1;
      shift = max(0, shift - 8);
    }
    if constexpr (kMass) {
      const Wide each = mass_of(base);
      left = each == 0 ? ~Wide{0} : (left + each - 1) / each;
    }
    return {base, left};
  }

  /// Counters of 1 << shift keys each over the keys from `base` to base + extent, into totals[round % 2].
  template <bool kMass>
  __device__ void count(std::uint32_t base, std::uint32_t extent, int round, int shift) {
    auto* const zero = reinterpret_cast<uint4*>(room_.counters);
    for (int i = static_cast<int>(threadIdx.x); i < kDigits * kCopies / 4; i += kThreads)
      zero[i] = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < kDigits) room_.masses[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 2
    for (int i = static_cast<int>(threadIdx.x) * 4; i < mine_; i += kThreads * 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(keys_ + i);  // behind the end: 0
      for (const std::uint32_t key : {four.x, four.y, four.z, four.w}) {
        if (key < base || key - base > extent) continue;
        const std::uint32_t digit = (key - base) >> shift;
        if constexpr (kMass) {
          atomicAdd(room_.masses + digit, mass_of(key));
        } else {
          atomicAdd(room_.counters + digit * kCopies + threadIdx.x % kCopies, 1U);
        }
      }
    }
    __syncthreads();
    if (threadIdx.x < kDigits) {
      Wide sum = room_.masses[threadIdx.x];
      unsigned counted = 0;
#pragma unroll
      for (int c = 0; c < kCopies; ++c) {
        counted += room_.counters[threadIdx.x * kCopies + (c + threadIdx.x) % kCopies];
      }
      room_.totals[round % 2][threadIdx.x] = sum + counted;
    }
  }

  /// The digit at which the sum from the largest one on reaches `wanted`, and what is left of it there, in room_; false
  /// where it does not.
  __device__ bool find(Wide wanted, int round) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);
    Wide own = 0;
    if (digit >= 0) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) own += *of_block(&room_.totals[round % 2][digit], b);
    }
    Wide sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const Wide other = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) room_.warp_sums[warp] = sum;
    __syncthreads();
    Wide all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) sum += room_.warp_sums[w];
      all += room_.warp_sums[w];
    }
    if (digit >= 0 && sum >= wanted && sum - own < wanted) {
      room_.digit = static_cast<std::uint32_t>(digit);
      room_.left = wanted - (sum - own);
    }
    __syncthreads();
    return all >= wanted;
  }

  /// A thread's four neighbouring units: bits 0 to 3 those that are taken for sure, bits 4 to 7 those that equal the
  /// last one taken.
  __device__ unsigned standing(int i, const Cut& cut) const {
    unsigned bits = 0;
    if (i >= mine_) return 0;
    const uint4 four = *reinterpret_cast<const uint4*>(keys_ + i);
    const std::uint32_t keys[4] = {four.x, four.y, four.z, four.w};
    const bool ends = first_ + i < head_units_ || first_ + i + 3 >= tail_units_;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (keys[e] > cut.key) bits |= 1U << e;
      if (keys[e] == cut.key) bits |= 16U << e;
    }
    if (cut.key == 0 || cut.equal == 0) bits &= 15U;
    if (ends) {
      for (int e = 0; e < 4; ++e) {
        if (i + e < mine_ && always_in(first_ + i + e)) bits |= 1U << e;
      }
    }
    return bits;
  }
  /// Sum over the lanes before this one of a number up to 4, and over all of them.
  __device__ static int lanes_before(int number, int& all) {
    const std::uint32_t lower = (1U << (threadIdx.x % 32)) - 1;
    int before = 0;
    all = 0;
#pragma unroll
    for (int bit = 0; bit < 3; ++bit) {
      const std::uint32_t set = __ballot_sync(~0U, number >> bit & 1);
      before += __popc(set & lower) << bit;
      all += __popc(set) << bit;
    }
    return before;
  }

  __device__ void write(const Cut& cut) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int each = ((mine_ + kWarps - 1) / kWarps + 127) / 128 * 128;
    const int begin = min(mine_, warp * each);
    const int end = min(mine_, begin + each);
    int sure = 0, equal = 0;
    for (int i = begin; i < end; i += 128) {
      const unsigned is = standing(i + lane * 4, cut);
      sure += __popc(is & 15U);
      equal += __popc(is >> 4);
    }
    sure = __reduce_add_sync(~0U, sure);
    equal = __reduce_add_sync(~0U, equal);
    if (lane == 0) room_.warp_taken[warp][0] = sure, room_.warp_taken[warp][1] = equal;
    __syncthreads();
    if (threadIdx.x < 2) {
      int sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += room_.warp_taken[w][threadIdx.x];
      room_.taken[threadIdx.x] = sum;
    }
    synchronise();
    const Wide most = cut.equal;
    const auto taken_of = [&](Wide equals_before, int these) {
      return static_cast<int>(min(most > equals_before ? most - equals_before : 0, static_cast<Wide>(these)));
    };
    int others[kBlocks][2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int* const other = of_block(room_.taken, b);
      others[b][0] = other[0], others[b][1] = other[1];
    }
    Wide equals = 0, equals_here = 0;
    int before = 0, all = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int taken = others[b][0] + taken_of(equals, others[b][1]);
      if (b < rank_) before += taken;
      if (b == rank_) equals_here = equals;
      equals += static_cast<Wide>(others[b][1]);
      all += taken;
    }
    for (int w = 0; w < warp; ++w) {
      before += room_.warp_taken[w][0] + taken_of(equals_here, room_.warp_taken[w][1]);
      equals_here += static_cast<Wide>(room_.warp_taken[w][1]);
    }
    if (all == units_) {
      if (rank_ == 0 && threadIdx.x == 0) of_.set_count[choice_.set] = kEverything;
      return;
    }
    std::int32_t* const to = of_.set_slots + static_cast<std::size_t>(choice_.set) * of_.set_capacity;
    for (int i = begin; i < end; i += 128) {
      const unsigned is = standing(i + lane * 4, cut);
      int all_equal = 0, all_taken = 0;
      Wide number = equals_here + static_cast<Wide>(lanes_before(__popc(is >> 4), all_equal));
      unsigned taken = is & 15U;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if ((is >> (4 + e) & 1U) != 0 && number++ < most) taken |= 1U << e;
      }
      int place = before + lanes_before(__popc(taken), all_taken);
      const int unit = first_ + i + lane * 4;
      if (choice_.block == 1) {
        for (unsigned bits = taken; bits != 0; bits &= bits - 1, ++place) {
          if (place < of_.set_capacity) to[place] = unit + __ffs(static_cast<int>(bits)) - 1;
        }
      } else {
        for (unsigned bits = taken; bits != 0; bits &= bits - 1, ++place)
          put_unit(to, unit + __ffs(static_cast<int>(bits)) - 1, place);
      }
      // The last unit, which may be short, is the last of those taken or none of them.
      const int last = units_ - 1 - unit;
      if (last >= 0 && last < 4 && i + lane * 4 + last < mine_) {
        const int missing = (taken >> last & 1U) != 0 ? units_ * choice_.block - slots_ : 0;
        const Wide count = static_cast<Wide>(all) * choice_.block - missing;
        of_.set_count[choice_.set] = static_cast<int>(min(count, static_cast<Wide>(of_.set_capacity)));
      }
      equals_here += static_cast<Wide>(all_equal);
      before += all_taken;
    }
  }
  /// Writes a unit's slots to its place among those taken.
  __device__ void put_unit(std::int32_t* to, int unit, int place) const {
    const int begin = unit * choice_.block;
    const int length = min(choice_.block, slots_ - begin);
    const Wide at = static_cast<Wide>(place) * static_cast<Wide>(choice_.block);
    for (int j = 0; j < length && at + j < of_.set_capacity; ++j) to[at + j] = begin + j;
  }

  const SelectArguments& of_;
  Room& room_;
  const Choice choice_;
  std::uint32_t* keys_ = nullptr;
  int rank_ = 0, slots_ = 0, units_ = 0, first_ = 0, mine_ = 0, head_units_ = 0, tail_units_ = 0;
  int scored_ = 0;  ///< scores of a query head: of slots, or of units
  int each_ = 1;    ///< of them a unit has
};

}  // namespace selection
}  // namespace glimpse::kernels::cuda
