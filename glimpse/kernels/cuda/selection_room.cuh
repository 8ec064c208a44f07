// What the blocks that make a choice together have in shared memory.
#pragma once

#include "glimpse/kernels/cuda/cluster.cuh"
#include "glimpse/kernels/cuda/pooling.cuh"
#include "glimpse/kernels/cuda/ranks.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace selection {

using Wide = unsigned long long;

constexpr int kThreads = 512;
constexpr int kDigits = 256;
constexpr int kCopies = 16;                        ///< of the counters: threads of a warp seldom meet at one
constexpr int kFewCounted = 1024, kFewCopies = 2;  ///< of so few units
constexpr int kKept = 2048;      ///< keys that the first two rounds leave a block to choose from, at most
constexpr int kGathered = 1024;  ///< and all of them, where each block chooses by itself from there on
constexpr double kUnitOfMass = 4398046511104.0;  ///< 2^42: sums of whole numbers do not depend on their order

/// The value that order_of (ranks.cuh) made a key of.
__device__ inline float value_of(std::uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}
constexpr std::uint32_t kZeroKey = 0x80000000U;
__device__ inline Wide mass_of(std::uint32_t key) {
  return key <= kZeroKey ? 0 : __double2ull_rn(fmin(static_cast<double>(value_of(key)), 1048576.0) * kUnitOfMass);
}

struct Room {
  Choice choice;
  std::uint32_t counters[kDigits * kCopies];
  Wide totals[2][kDigits];  ///< of this block, read by the others of the cluster
  Wide masses[kDigits];
  Wide warp_sums[kThreads / 32];
  std::uint32_t bounds[2];  ///< least and largest key of this block
  Wide held;                ///< what is always in, of this block
  int taken[2];             ///< of this block: surely, and units that equal the last one taken
  int warp_taken[kThreads / 32][2];
  int before[2], all[2];      ///< of the blocks before this one, and of all
  std::uint32_t kept[kKept];  ///< keys in the range that the first round left; later the units that are taken
  std::uint32_t kept_count;
  std::uint32_t left_over[kGathered], gathered[kGathered];  ///< keys that two rounds left, of this block and of all
  std::uint32_t left_over_count;
  std::uint32_t digit;
  Wide left;
  bool whole;  ///< all that the counter at `digit` has is taken
};

constexpr int kRoomPieces = (static_cast<int>(sizeof(Room)) + 15) / 16;
constexpr std::size_t kRoomBytes = kRoomPieces * 16;

/// Which units are taken: all of a larger key, and so many that equal it, the lowest first.
struct Cut {
  std::uint32_t key = ~0U;
  Wide equal = 0;
};

}  // namespace selection
}  // namespace glimpse::kernels::cuda
