// Sets from scores: the best units by their pooled values, exactly, ties to the lower unit. A choice is the work of a
// cluster of blocks (of one block where the device has no clusters): each pools its share of the units into keys that
// order as the values do and keeps them in shared memory; four rounds of 256 counters over the digits of the keys find
// the key of the last one taken; then the sets are written in order.
#include <cooperative_groups.h>

#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace {

using Wide = unsigned long long;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kDigits = 256;
constexpr int kCopies = 16;  ///< of the counters: threads of a warp seldom meet at one
constexpr int kClusterBlocks = 8;
constexpr double kUnitOfMass = 4398046511104.0;  ///< 2^42: sums of whole numbers do not depend on their order

/// Orders as floats do; 0 is what is never chosen: NaN and -inf. Both zeros are equal.
__device__ std::uint32_t key_of(float value) {
  if (!(value > -INFINITY)) return 0;
  const std::uint32_t bits = __float_as_uint(value == 0 ? 0.0F : value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ float value_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}
constexpr std::uint32_t kZeroKey = 0x80000000U;
__device__ Wide mass_of(std::uint32_t key) {
  return key <= kZeroKey ? 0 : __double2ull_rn(fmin(static_cast<double>(value_of(key)), 1048576.0) * kUnitOfMass);
}

struct Room {
  std::uint32_t counters[kDigits * kCopies];
  Wide totals[2][kDigits];  ///< of this block, read by the others of the cluster
  Wide masses[kDigits];
  Wide warp_sums[kWarps];
  Wide held;                ///< what is always in, of this block
  int taken[2];             ///< of this block: surely, and units that equal the last one taken
  int warp_taken[kWarps][2];
  std::uint32_t digit;
  Wide left;
};

/// Which units are taken: all of a larger key, and so many that equal it, the lowest first.
struct Cut {
  std::uint32_t key = ~0U;
  Wide equal = 0;
};

template <int kBlocks>
class Selection {
 public:
  __device__ Selection(const SelectArguments& of, Room& room, std::uint32_t* keys)
      : of_(of), room_(room), choice_(of.choices[blockIdx.x / kBlocks]) {
    rank_ = static_cast<int>(blockIdx.x % kBlocks);
    const HeadView& view = view_of(of.cache, choice_.row, choice_.head);
    slots_ = seen_slots(of.cache, choice_.row, view);
    units_ = (slots_ + choice_.block - 1) / choice_.block;
    const int share = ((units_ + kBlocks - 1) / kBlocks + 31) / 32 * 32;
    first_ = min(units_, rank_ * share);
    mine_ = min(units_ - first_, share);
    keys_ = of.spill != nullptr ? of.spill + static_cast<std::size_t>(blockIdx.x) * of.share : keys;
  }

  __device__ void run() {
    if (threadIdx.x == 0) room_.held = 0;
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

  __device__ bool always_in(int unit) const { return unit < choice_.head_units || unit >= choice_.tail_units; }
  __device__ static std::uint32_t least_key(double value) {
    float least = static_cast<float>(value);
    if (static_cast<double>(least) < value) least = nextafterf(least, INFINITY);
    const std::uint32_t key = key_of(least);
    return key == 0 ? 1 : key;
  }

  /// The pooled values of four slots from `slot` (those behind the end: -inf).
  __device__ void pooled(int slot, float (&values)[4]) const {
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
        if (reinterpret_cast<std::uintptr_t>(from) % 16 == 0 && slot + 3 < slots_) {
          const float4 four = __ldg(reinterpret_cast<const float4*>(from));
          x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        } else {
#pragma unroll
          for (int e = 0; e < 4; ++e) x[e] = slot + e < slots_ ? from[e] : -INFINITY;
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (probability) x[e] = lse == -INFINITY ? 0.0F : expf(x[e] - lse);
          values[e] = largest ? fmaxf(values[e], x[e]) : values[e] + x[e];
        }
      }
    }
    const float parts = largest ? 1.0F : static_cast<float>((last - first) * choice_.heads);
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] = slot + e < slots_ ? values[e] / parts : -INFINITY;
  }

  __device__ void pool() {
    const int block = choice_.block;
    const bool mass = choice_.rule == ChoiceRule::mass;
    if (block > 1 && mass) {
      sum_units();
    } else {
      if (block > 1) {
        for (int i = static_cast<int>(threadIdx.x); i < mine_; i += kThreads) keys_[i] = 0;
        __syncthreads();
      }
      const int begin = first_ * block;
      const int end = min(slots_, (first_ + mine_) * block);
      for (int slot = begin + static_cast<int>(threadIdx.x) * 4; slot < end; slot += kThreads * 4) {
        float values[4];
        pooled(slot, values);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (slot + e >= end) continue;
          const std::uint32_t key = key_of(values[e]);
          if (block == 1) {
            put(slot + e - first_, key);
          } else if (!always_in((slot + e) / block)) {
            atomicMax(keys_ + ((slot + e) / block - first_), key);
          }
        }
      }
    }
  }
  /// A unit's key; what is always in takes no part in the search.
  __device__ void put(int i, std::uint32_t key) {
    const int unit = first_ + i;
    if (choice_.rule == ChoiceRule::mass && always_in(unit) && (unit < choice_.head_units || choice_.tail_counts != 0)) {
      atomicAdd(&room_.held, mass_of(key));
    }
    keys_[i] = always_in(unit) ? 0 : key;
  }
  __device__ void sum_units() {
    for (int i = static_cast<int>(threadIdx.x); i < mine_; i += kThreads) {
      const int begin = (first_ + i) * choice_.block;
      const int end = min(slots_, begin + choice_.block);
      double sum = 0;
      for (int slot = begin; slot < end; slot += 4) {
        float values[4];
        pooled(slot, values);
        for (int e = 0; e < 4; ++e) sum += slot + e < end ? values[e] : 0.0F;
      }
      put(i, key_of(static_cast<float>(sum)));
    }
  }
  __device__ Wide total_held() {
    synchronise();
    Wide held = 0;
    for (int b = 0; b < kBlocks; ++b) held += *of_block(&room_.held, b);
    return held;
  }

  /// The cut that takes the best units until `wanted` of them, or of their mass, is reached.
  template <bool kMass>
  __device__ Cut search(Wide wanted) {
    std::uint32_t prefix = 0;
    Wide left = wanted;
    for (int round = 0; round < 4; ++round) {
      const int shift = 24 - 8 * round;
      count<kMass>(prefix, round, shift);
      synchronise();
      if (!find(left, round)) {  // only in the first round: all that can be chosen
        return {kMass ? kZeroKey : 0U, 0};
      }
      prefix |= room_.digit << shift;
      left = room_.left;
    }
    if constexpr (kMass) {
      const Wide each = mass_of(prefix);
      left = each == 0 ? ~Wide{0} : (left + each - 1) / each;
    }
    return {prefix, left};
  }

  /// Counters of this round's digit over the keys that have the prefix, into totals[round % 2].
  template <bool kMass>
  __device__ void count(std::uint32_t prefix, int round, int shift) {
    for (int i = static_cast<int>(threadIdx.x); i < kDigits * kCopies; i += kThreads) room_.counters[i] = 0;
    if (threadIdx.x < kDigits) room_.masses[threadIdx.x] = 0;
    __syncthreads();
    const std::uint32_t upper = round == 0 ? 0 : ~0U << (shift + 8);
    for (int i = static_cast<int>(threadIdx.x); i < mine_; i += kThreads) {
      const std::uint32_t key = keys_[i];
      if (key <= (kMass ? kZeroKey : 0U) || (key & upper) != prefix) continue;
      const std::uint32_t digit = key >> shift & 255U;
      if constexpr (kMass) {
        atomicAdd(room_.masses + digit, mass_of(key));
      } else {
        atomicAdd(room_.counters + digit * kCopies + threadIdx.x % kCopies, 1U);
      }
    }
    __syncthreads();
    if (threadIdx.x < kDigits) {
      Wide sum = room_.masses[threadIdx.x];
      for (int c = 0; c < kCopies; ++c) sum += room_.counters[threadIdx.x * kCopies + (c + threadIdx.x) % kCopies];
      room_.totals[round % 2][threadIdx.x] = sum;
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

  /// 1: taken for sure; 2: equals the last one taken.
  __device__ int standing(int i, const Cut& cut) const {
    if (i >= mine_) return 0;
    if (always_in(first_ + i)) return 1;
    const std::uint32_t key = keys_[i];
    if (key == 0) return 0;
    return key > cut.key ? 1 : key == cut.key && cut.equal > 0 ? 2 : 0;
  }

  __device__ void write(const Cut& cut) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int each = ((mine_ + kWarps - 1) / kWarps + 31) / 32 * 32;
    const int begin = warp * each;
    const int end = min(mine_, begin + each);
    int sure = 0, equal = 0;
    for (int i = begin; i < end; i += 32) {
      const int is = standing(i + lane, cut);
      sure += __popc(__ballot_sync(~0U, is == 1));
      equal += __popc(__ballot_sync(~0U, is == 2));
    }
    if (lane == 0) room_.warp_taken[warp][0] = sure, room_.warp_taken[warp][1] = equal;
    __syncthreads();
    if (threadIdx.x < 2) {
      int sum = 0;
      for (int w = 0; w < kWarps; ++w) sum += room_.warp_taken[w][threadIdx.x];
      room_.taken[threadIdx.x] = sum;
    }
    synchronise();
    Wide equals = 0;
    int before = 0, all = 0;
    const auto taken_of = [&](Wide equals_before, int these) {
      const Wide room = cut.equal > equals_before ? cut.equal - equals_before : 0;
      return static_cast<int>(min(room, static_cast<Wide>(these)));
    };
    Wide equals_here = 0;
    for (int b = 0; b < kBlocks; ++b) {
      const int* const other = of_block(room_.taken, b);
      const int taken = other[0] + taken_of(equals, other[1]);
      if (b < rank_) before += taken;
      if (b == rank_) equals_here = equals;
      equals += static_cast<Wide>(other[1]);
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
    const std::uint32_t lower = (1U << lane) - 1;
    for (int i = begin; i < end; i += 32) {
      const int is = standing(i + lane, cut);
      const std::uint32_t same = __ballot_sync(~0U, is == 2);
      const Wide number = equals_here + static_cast<Wide>(__popc(same & lower));
      const bool taken = is == 1 || (is == 2 && number < cut.equal);
      const std::uint32_t all_taken = __ballot_sync(~0U, taken);
      const int place = before + __popc(all_taken & lower);
      const int unit = first_ + i + lane;
      const int begin_slot = unit * choice_.block;
      const int length = min(choice_.block, slots_ - begin_slot);
      const Wide at = static_cast<Wide>(place) * choice_.block;
      if (taken) {
        for (int j = 0; j < length && at + j < of_.set_capacity; ++j) to[at + j] = begin_slot + j;
      }
      if (i + lane < mine_ && unit == units_ - 1) {
        const Wide count = taken ? at + length : at;
        of_.set_count[choice_.set] = static_cast<int>(min(count, static_cast<Wide>(of_.set_capacity)));
      }
      equals_here += static_cast<Wide>(__popc(same));
      before += __popc(all_taken);
    }
  }

  const SelectArguments& of_;
  Room& room_;
  const Choice choice_;
  std::uint32_t* keys_ = nullptr;
  int rank_ = 0, slots_ = 0, units_ = 0, first_ = 0, mine_ = 0;
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define GLIMPSE_CLUSTER __cluster_dims__(kClusterBlocks, 1, 1)
#else
#define GLIMPSE_CLUSTER
#endif

template <int kBlocks>
__device__ void select_in(const SelectArguments& of) {
  extern __shared__ uint4 memory[];
  auto& room = *reinterpret_cast<Room*>(memory);
  Selection<kBlocks> selection(of, room, reinterpret_cast<std::uint32_t*>(&room + 1));
  selection.run();
}

__global__ void GLIMPSE_CLUSTER __launch_bounds__(kThreads) select_kernel(const __grid_constant__ SelectArguments of) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  select_in<kClusterBlocks>(of);
#endif
}
__global__ void __launch_bounds__(kThreads) select_alone_kernel(const __grid_constant__ SelectArguments of) {
  select_in<1>(of);
}

}  // namespace

int select_blocks(const Limits& limits) { return limits.clusters ? kClusterBlocks : 1; }
std::size_t select_units(const Limits& limits) {
  return (static_cast<std::size_t>(limits.shared_bytes) - sizeof(Room)) / sizeof(std::uint32_t);
}

void launch_select(const SelectArguments& of, const Limits& limits, CUstream_st* stream) {
  const std::size_t bytes = sizeof(Room) + (of.spill == nullptr ? of.share * sizeof(std::uint32_t) : 0);
  auto* const kernel = limits.clusters ? select_kernel : select_alone_kernel;
  allow_shared(kernel, static_cast<int>(bytes));
  kernel<<<of.count * select_blocks(limits), kThreads, bytes, stream>>>(of);
  check_cuda(cudaGetLastError(), "select");
}

}  // namespace glimpse::kernels::cuda
