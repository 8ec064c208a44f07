// The queries of a segment in shared memory, as the left operand of products.
#pragma once

#include "glimpse/kernels/cuda/feed.cuh"

namespace glimpse::kernels::cuda {

/// A group's queries in shared memory, for rows of the cache of type Stored: for each eight of them sixteen rows, as
/// mma.cuh says. Rows are 16 bytes longer than they need be, so that eight of them lie in different banks. Beside bytes
/// the dimensions of sixteen are in the order in which bytes.cuh takes them.
template <class Stored, int kDim, int kTiles, int kThreads>
class Queries {
 public:
  using T = MultipliedAs<Stored>;
  static constexpr int kRow = kDim + 8;
  static constexpr int kBytes = kTiles * 16 * kRow * 2;

  __device__ explicit Queries(T* memory) : memory_(memory) {}

  /// Asks for a segment's queries; store() puts them in place.
  __device__ void ask(const float* q, const Segment& s) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 2;
      const int query = at / kDim;
      asked_[i] = make_float2(0, 0);
      if (query < s.queries) {
        asked_[i] = *reinterpret_cast<const float2*>(q + static_cast<std::size_t>(s.first_query) * kDim + at);
      }
    }
  }
  __device__ void store() const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = (i * kThreads + static_cast<int>(threadIdx.x)) * 2;
      const int query = at / kDim;
      if (query >= kTiles * 8) continue;
      T* to = memory_ + (query / 8 * 16 + query % 8) * kRow + place_of(at % kDim);
      std::uint32_t rest = 0;
      *reinterpret_cast<std::uint32_t*>(to) = split<T>(asked_[i].x, asked_[i].y, rest);
      *reinterpret_cast<std::uint32_t*>(to + 8 * kRow) = rest;
    }
  }
  /// The left operand of dimensions [16 step, 16 step + 16).
  __device__ void load(std::uint32_t (&to)[4], int tile, int step) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    load_matrices(to, shared_address(memory_ + (tile * 16 + lane % 16) * kRow + step * 16 + lane / 16 * 8));
  }

 private:
  __device__ static int place_of(int dim) {
    if constexpr (!kScaled<Stored>) return dim;
    return dim / 16 * 16 + dim % 16 / 4 * 2 + dim % 4 / 2 * 8 + dim % 2;
  }
  static constexpr int kEach = (kTiles * 8 * kDim / 2 + kThreads - 1) / kThreads;
  T* memory_;
  float2 asked_[kEach];
};

}  // namespace glimpse::kernels::cuda
