// Sets from scores: the best units by their pooled values, exactly, ties to the lower unit. A choice is the work of a
// cluster of blocks (of one block where the device has no clusters): each pools its share of the units into keys that
// order as the values do and keeps them in shared memory; rounds of 256 counters, each over a narrower range, find
// the key of the last one taken; then the sets are written in order.
#pragma once

#include "glimpse/kernels/cuda/selection_room.cuh"

namespace glimpse::kernels::cuda {
namespace selection {

template <int kBlocks, int kThreads>
class Selection {
  using Cluster = Blocks<kBlocks>;
  static constexpr int kWarps = kThreads / 32;

 public:
  __device__ Selection(const SelectArguments& of, Room& room, std::uint32_t* keys)
      : of_(of), room_(room), choice_(choice_in(of, room)) {
    rank_ = static_cast<int>(blockIdx.x % kBlocks);
    head_units_ = choice_.head_units;
    tail_units_ = choice_.tail_units;
    const HeadView& view = view_of(of.cache, choice_.row, choice_.head);
    slots_ = seen_slots(of.cache, choice_.row, view);
    units_ = (slots_ + choice_.block - 1) / choice_.block;
    scored_ = choice_.by_unit != 0 ? units_ : slots_;
    each_ = choice_.by_unit != 0 ? 1 : choice_.block;
    const std::size_t head = static_cast<std::size_t>(choice_.row) * of.cache.kv_heads + choice_.head;
    const std::size_t query = head * of.group + (choice_.query < 0 ? 0 : choice_.query);
    pooled_ = {of.scores + query * of.stride,
               of.lse + query,
               of.stride,
               of.group,
               choice_.heads,
               choice_.query < 0 ? of.group : 1,
               scored_,
               choice_.pooling,
               choice_.across,
               of.mean_lse + static_cast<std::size_t>(blockIdx.x / kBlocks) * of.cache.kv_heads};
    fast_ = !pooled_.apart() && of.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(of.scores) % 16 == 0;
    const int share = ((units_ + kBlocks - 1) / kBlocks + 31) / 32 * 32;
    first_ = min(units_, rank_ * share);
    mine_ = min(units_ - first_, share);
    keys_ = of.spill != nullptr ? of.spill + static_cast<std::size_t>(blockIdx.x) * of.share : keys;
  }

  /// In shared memory, for it would fill registers.
  __device__ static const Choice& choice_in(const SelectArguments& of, Room& room) {
    if (threadIdx.x == 0) room.choice = of.choices[blockIdx.x / kBlocks];
    __syncthreads();
    return room.choice;
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
    Cluster::synchronise();  // nobody leaves while others read its shared memory
  }

 private:
  __device__ bool always_in(int unit) const { return unit < head_units_ || unit >= tail_units_; }
  __device__ static std::uint32_t least_key(double value) {
    float least = static_cast<float>(value);
    if (static_cast<double>(least) < value) least = nextafterf(least, INFINITY);
    const std::uint32_t key = order_of(least);
    return key == 0 ? 1 : key;
  }

  /// Makes the keys of this block's units.
  __device__ void pool() {
    if (each_ > 1) return pool_blocks();
    int next = 0;
    switch (choice_.pooling) {
      case Pooling::mean_probability:
        next = pool_units<true, false>();
        break;
      case Pooling::max_probability:
        next = pool_units<true, true>();
        break;
      case Pooling::mean_score:
        next = pool_units<false, false>();
        break;
      case Pooling::max_score:
        next = pool_units<false, true>();
        break;
      case Pooling::probability_of_mean:  // apart
        next = first_ + static_cast<int>(threadIdx.x) * 4;
        break;
    }
    pool_rest(next);
  }
  /// As many of this thread's units as lie in whole fours; the first behind them.
  template <bool kProbability, bool kLargest>
  __device__ int pool_units() {
    const int end = first_ + mine_;
    int unit = first_ + static_cast<int>(threadIdx.x) * 4;
#pragma unroll 1
    for (; fast_ && unit + 3 < end; unit += kThreads * 4) {
      float values[4];
      pool_four<kProbability, kLargest>(pooled_, unit, values);
      put_four(unit, values);
    }
    return unit;
  }
  /// Those behind, or all.
  __device__ void pool_rest(int unit) {
#pragma unroll 1
    for (; unit < first_ + mine_; unit += kThreads * 4) {
      const float4 four = pool_any_four(pooled_, unit);
      put_four(unit, {four.x, four.y, four.z, four.w});
    }
  }
  /// Units of several slots: the largest value, or the sum.
  __device__ void pool_blocks() {
    if (choice_.rule == ChoiceRule::mass) return sum_units();
    for (int i = static_cast<int>(threadIdx.x); i < mine_; i += kThreads) keys_[i] = 0;
    __syncthreads();
    const int end = min(scored_, (first_ + mine_) * each_);
#pragma unroll 1
    for (int slot = first_ * each_ + static_cast<int>(threadIdx.x) * 4; slot < end; slot += kThreads * 4) {
      const float4 four = pool_any_four(pooled_, slot);
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll 1
      for (int e = 0; e < 4; ++e) {
        const int unit = (slot + e) / each_;
        const float value = e == 0 ? values[0] : e == 1 ? values[1] : e == 2 ? values[2] : values[3];
        if (slot + e < end && !always_in(unit)) atomicMax(keys_ + (unit - first_), order_of(value));
      }
    }
  }
  /// The keys of four neighbouring units of one slot; behind the end: 0, as values there are -inf.
  __device__ void put_four(int unit, const float (&values)[4]) {
    std::uint32_t keys[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) keys[e] = order_of(values[e]);
    if (unit < head_units_ || unit + 3 >= tail_units_) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (always_in(unit + e)) keys[e] = kept_out(unit + e, keys[e]);
      }
    }
    const bool mass = choice_.rule == ChoiceRule::mass;
#pragma unroll
    for (int e = 0; e < 4; ++e) note(keys[e], mass);
    *reinterpret_cast<uint4*>(keys_ + (unit - first_)) = make_uint4(keys[0], keys[1], keys[2], keys[3]);
  }
  /// The key of what is always in, which takes no part in the search; it may count towards the mass.
  __device__ std::uint32_t kept_out(int unit, std::uint32_t key) {
    if (choice_.rule == ChoiceRule::mass && (unit < head_units_ || choice_.tail_counts != 0)) {
      atomicAdd(&room_.held, mass_of(key));
    }
    return 0;
  }
  __device__ void sum_units() {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < mine_; i += kThreads) {
      const int begin = (first_ + i) * each_;
      const int end = min(scored_, begin + each_);
      double sum = 0;
#pragma unroll 1
      for (int slot = begin; slot < end; slot += 4) {
        const float4 four = pool_any_four(pooled_, slot);
        sum += four.x;
        if (slot + 1 < end) sum += four.y;
        if (slot + 2 < end) sum += four.z;
        if (slot + 3 < end) sum += four.w;
      }
      const std::uint32_t key = order_of(static_cast<float>(sum));
      keys_[i] = always_in(first_ + i) ? kept_out(first_ + i, key) : key;
    }
  }
  __device__ Wide total_held() {
    Cluster::synchronise();
    Wide held = 0;
    for (int b = 0; b < kBlocks; ++b) held += *Cluster::of_block(&room_.held, b);
    return held;
  }

  /// The least and the largest key that can be chosen, of all blocks; false where there is none.
  template <bool kMass>
  __device__ bool bounds(std::uint32_t& least, std::uint32_t& most) {
    if (each_ > 1) {
      for (int i = static_cast<int>(threadIdx.x) * 4; i < mine_; i += kThreads * 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(keys_ + i);
        for (const std::uint32_t key : {four.x, four.y, four.z, four.w}) note(key, kMass);
      }
    }
    if (threadIdx.x == 0) room_.bounds[0] = ~0U, room_.bounds[1] = 0;
    __syncthreads();
    const std::uint32_t low = __reduce_min_sync(~0U, above_);
    const std::uint32_t high = __reduce_max_sync(~0U, most_);
    if (threadIdx.x % 32 == 0) {
      atomicMin(&room_.bounds[0], low);
      atomicMax(&room_.bounds[1], high);
    }
    Cluster::synchronise();
    least = ~0U, most = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const std::uint32_t* const other = Cluster::of_block(room_.bounds, b);
      least = min(least, other[0]);
      most = max(most, other[1]);
    }
    least += never(kMass) + 1;
    return most > never(kMass);
  }
  /// Keys up to this one are not chosen.
  __device__ static std::uint32_t never(bool mass) {
    return mass ? kZeroKey : 0;
  }
  __device__ void note(std::uint32_t key, bool mass) {
    above_ = min(above_, key - never(mass) - 1);  // wraps where it is never chosen
    most_ = max(most_, key);
  }

  /// The cut that takes the best units until `wanted` of them, or of their mass, is reached. Counters divide the range
  /// of keys, then that of the counter at which it is reached, until that is one key, or all of it is taken.
  template <bool kMass>
  __device__ Cut search(Wide wanted) {
    const Cut all{kMass ? kZeroKey : 0U, 0};
    std::uint32_t base = 0, most = 0;
    if (!bounds<kMass>(base, most)) return all;
    int shift = max(0, 32 - __clz(most - base) - 8);
    std::uint32_t extent = most - base;
    Wide left = wanted;
    bool alone = kBlocks == 1;  // all that is left is here
    for (int round = 0;; ++round) {
      count<kMass>(base, extent, round, shift, alone);
      Cluster::meet(alone);
      if (!find(left, round, alone)) return all;  // only in the first round: all that can be chosen
      base += room_.digit << shift;
      left = room_.left;
      if (!kMass && room_.whole) return {base - 1, 0};
      if (shift == 0) break;
      extent = (1U << shift) - 1;
      shift = max(0, shift - 8);
      if (round == 1 && !alone) alone = gather(base, extent);
    }
    if constexpr (kMass) {
      const Wide each = mass_of(base);
      left = each == 0 ? ~Wide{0} : (left + each - 1) / each;
    }
    return {base, left};
  }

  /// Counters of 1 << shift keys each over the keys from `base` to base + extent, into totals[round % 2]. The second
  /// round keeps the keys that it counts, and later ones read those; where a block is `alone`, what gather() brought.
  template <bool kMass>
  __device__ void count(std::uint32_t base, std::uint32_t extent, int round, int shift, bool alone) {
    const int copies = mine_ <= kFewCounted ? kFewCopies : kCopies;
    uint4* const zero = reinterpret_cast<uint4*>(room_.counters);
    for (int i = static_cast<int>(threadIdx.x); i < kDigits * copies / 4; i += kThreads)
      zero[i] = make_uint4(0, 0, 0, 0);
    if (kMass && threadIdx.x < kDigits) room_.masses[threadIdx.x] = 0;
    if (threadIdx.x == 0 && round == 0) room_.kept_count = 0;
    __syncthreads();
    const auto add = [&](std::uint32_t key) {
      const std::uint32_t digit = (key - base) >> shift;
      if constexpr (kMass) {
        atomicAdd(room_.masses + digit, mass_of(key));
      } else {
        atomicAdd(room_.counters + digit * copies + threadIdx.x % copies, 1U);
      }
    };
    const auto is_in = [&](std::uint32_t key) { return key >= base && key - base <= extent; };
    if (round > 1 && (room_.kept_count <= kKept || (kBlocks > 1 && alone))) {
      const bool brought = kBlocks > 1 && alone;
      const std::uint32_t* const from = brought ? room_.gathered : room_.kept;
      const int keys = brought ? gathered_ : static_cast<int>(room_.kept_count);
      for (int i = static_cast<int>(threadIdx.x); i < keys; i += kThreads) {
        if (is_in(from[i])) add(from[i]);
      }
    } else {
#pragma unroll 2
      for (int i = static_cast<int>(threadIdx.x) * 4; i < mine_; i += kThreads * 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(keys_ + i);  // behind the end: 0
        for (const std::uint32_t key : {four.x, four.y, four.z, four.w}) {
          if (!is_in(key)) continue;
          add(key);
          if (round != 1) continue;
          const std::uint32_t place = atomicAdd(&room_.kept_count, 1U);
          if (place < kKept) room_.kept[place] = key;
        }
      }
    }
    __syncthreads();
    if (threadIdx.x < kDigits) {
      Wide sum = 0;
      if constexpr (kMass) {
        sum = room_.masses[threadIdx.x];
      } else {
        unsigned counted = 0;
#pragma unroll 4
        for (int c = 0; c < copies; ++c) {
          counted += room_.counters[threadIdx.x * copies + (c + threadIdx.x) % copies];
        }
        sum = counted;
      }
      room_.totals[round % 2][threadIdx.x] = sum;
    }
  }

  /// Brings the keys from `base` to base + extent of all blocks here, where they are few: true if so.
  __device__ bool gather(std::uint32_t base, std::uint32_t extent) {
    if (threadIdx.x == 0) room_.left_over_count = room_.kept_count <= kKept ? 0 : kGathered + 1;
    __syncthreads();
    if (room_.kept_count <= kKept) {
      for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(room_.kept_count); i += kThreads) {
        const std::uint32_t key = room_.kept[i];
        if (key < base || key - base > extent) continue;
        const std::uint32_t place = atomicAdd(&room_.left_over_count, 1U);
        if (place < kGathered) room_.left_over[place] = key;
      }
    }
    Cluster::synchronise();
    // A warp for each block.
    static_assert(kWarps >= kBlocks);
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
    const int count = lane < kBlocks ? static_cast<int>(*Cluster::of_block(&room_.left_over_count, lane % kBlocks)) : 0;
    const int sum = sum_up(min(count, kGathered + 1), lane);
    const int all = __shfl_sync(~0U, sum, 31);
    if (all > kGathered) return false;
    if (warp < kBlocks) {
      const int length = __shfl_sync(~0U, count, warp), first = __shfl_sync(~0U, sum, warp) - length;
      const std::uint32_t* const other = Cluster::of_block(room_.left_over, warp);
      for (int i = lane; i < length; i += 32) room_.gathered[first + i] = other[i];
    }
    gathered_ = all;
    __syncthreads();
    return true;
  }

  /// The digit at which the sum from the largest one on reaches `wanted`, and what is left of it there, in room_; false
  /// where it does not.
  __device__ bool find(Wide wanted, int round, bool alone) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int digit = kDigits - 1 - static_cast<int>(threadIdx.x);
    Wide own = 0;
    if (digit >= 0) {
      const Wide* const totals = &room_.totals[round % 2][digit];
      if (alone) {
        own = *totals;
      } else {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) own += *Cluster::of_block(totals, b);
      }
    }
    Wide sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const Wide other = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) room_.warp_sums[warp] = sum;
    __syncthreads();
    Wide all = 0;
#pragma unroll
    for (int w = 0; w < kDigits / 32; ++w) {
      const Wide of_warp = room_.warp_sums[w];
      if (w < warp) sum += of_warp;
      all += of_warp;
    }
    if (digit >= 0 && sum >= wanted && sum - own < wanted) {
      room_.digit = static_cast<std::uint32_t>(digit);
      room_.left = wanted - (sum - own);
      room_.whole = sum == wanted;
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
    if (warp == 0) {
      int sums[2];
      for (int i = 0; i < 2; ++i) {
        const int own = lane < kWarps ? room_.warp_taken[lane][i] : 0;
        sums[i] = sum_up(own, lane);
        if (lane < kWarps) room_.warp_taken[lane][i] = sums[i] - own;
      }
      if (lane == 31) room_.taken[0] = sums[0], room_.taken[1] = sums[1];
      if (kBlocks == 1 && lane == 31) {
        for (int i = 0; i < 2; ++i) room_.before[i] = 0, room_.all[i] = sums[i];
      }
    }
    Cluster::synchronise();
    if constexpr (kBlocks > 1) {
      if (warp == 0) {
        for (int i = 0; i < 2; ++i) {
          const int own = lane < kBlocks ? *Cluster::of_block(&room_.taken[i], lane % kBlocks) : 0;
          const int sum = sum_up(own, lane);
          if (lane == rank_) room_.before[i] = sum - own;
          if (lane == 31) room_.all[i] = sum;
        }
      }
      __syncthreads();
    }
    // Of units that equal the last one taken, the first so many are taken.
    const int most = static_cast<int>(min(cut.equal, Wide{0x7fffffff}));
    const int all = room_.all[0] + min(most, room_.all[1]);
    if (all == units_) {
      if (rank_ == 0 && threadIdx.x == 0) of_.set_count[choice_.set] = kEverything;
      return;
    }
    const int here = room_.before[0] + min(most, room_.before[1]);  // the first place of this block
    const int taken_here = room_.before[0] + room_.taken[0] + min(most, room_.before[1] + room_.taken[1]) - here;
    int equals = room_.before[1] + room_.warp_taken[warp][1];
    int before = room_.before[0] + room_.warp_taken[warp][0] + min(most, equals);
    std::int32_t* const to = of_.set_slots + static_cast<std::size_t>(choice_.set) * of_.set_capacity;
    const int block = choice_.block;
    const bool together = block > 1 && taken_here <= kKept;
    for (int i = begin; i < end; i += 128) {
      const unsigned is = standing(i + lane * 4, cut);
      int all_equal = 0, all_taken = 0;
      int number = equals + lanes_before(__popc(is >> 4), all_equal);
      unsigned taken = is & 15U;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if ((is >> (4 + e) & 1U) != 0 && number++ < most) taken |= 1U << e;
      }
      int place = before + lanes_before(__popc(taken), all_taken);
      const int unit = first_ + i + lane * 4;
      if (block == 1) {
        for (unsigned bits = taken; bits != 0; bits &= bits - 1, ++place) {
          if (place < of_.set_capacity) to[place] = unit + __ffs(static_cast<int>(bits)) - 1;
        }
      } else {
        for (unsigned bits = taken; bits != 0; bits &= bits - 1, ++place) {
          const int one = unit + __ffs(static_cast<int>(bits)) - 1;
          if (together) {
            room_.kept[place - here] = static_cast<std::uint32_t>(one);
          } else {
            put_unit(to, one, place);
          }
        }
      }
      // The last unit, which may be short, is the last of those taken or none of them.
      const int last = units_ - 1 - unit;
      if (last >= 0 && last < 4 && i + lane * 4 + last < mine_) {
        const int missing = (taken >> last & 1U) != 0 ? units_ * choice_.block - slots_ : 0;
        const Wide count = static_cast<Wide>(all) * choice_.block - missing;
        of_.set_count[choice_.set] = static_cast<int>(min(count, static_cast<Wide>(of_.set_capacity)));
      }
      equals += all_equal;
      before += all_taken;
    }
    if (!together) return;
    __syncthreads();
    const Wide first = static_cast<Wide>(here) * static_cast<Wide>(block);
    for (int i = static_cast<int>(threadIdx.x); i < taken_here * block; i += kThreads) {
      const int number = i / block;
      const int slot = static_cast<int>(room_.kept[number]) * block + i - number * block;
      if (slot < slots_ && first + i < of_.set_capacity) to[first + i] = slot;
    }
  }
  /// Sum over the lanes up to this one.
  __device__ static int sum_up(int own, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0U, own, step);
      if (lane >= step) own += other;
    }
    return own;
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
  const Choice& choice_;
  std::uint32_t* keys_ = nullptr;
  int rank_ = 0, slots_ = 0, units_ = 0, first_ = 0, mine_ = 0, head_units_ = 0, tail_units_ = 0;
  int scored_ = 0;    ///< scores of a query head: of slots, or of units
  int each_ = 1;      ///< of them a unit has
  int gathered_ = 0;  ///< keys that gather() brought
  Pooled pooled_;
  bool fast_ = false;                     ///< scores are pooled by pool_four() and lie at aligned places
  std::uint32_t above_ = ~0U, most_ = 0;  ///< of this thread's keys: the least one less never() + 1, the largest
};

}  // namespace selection
}  // namespace glimpse::kernels::cuda
