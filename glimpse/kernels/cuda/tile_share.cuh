// A tile of a product on CUDA cores: 256 threads have 64 x 64 sums, a thread four by four of them, and take sixteen
// terms of both factors at a time from shared memory.
#pragma once

namespace glimpse::kernels::cuda {

inline constexpr int kShareThreads = 256;
inline constexpr int kShareTile = 64;
inline constexpr int kShareDeep = 16;

/// What a thread adds up: rows from row() on, columns from column() on.
template <class T>
struct TileShare {
  using Factor = T[kShareDeep][kShareTile];  ///< 16 bytes aligned
  struct alignas(16) Four {
    T values[4];
  };

  T sums[4][4] = {};

  __device__ static int row() { return static_cast<int>(threadIdx.x) / 16 * 4; }
  __device__ static int column() { return static_cast<int>(threadIdx.x) % 16 * 4; }

  __device__ void add(const Factor& left, const Factor& right) {
#pragma unroll
    for (int k = 0; k < kShareDeep; ++k) {
      const Four a = *reinterpret_cast<const Four*>(&left[k][row()]);
      const Four b = *reinterpret_cast<const Four*>(&right[k][column()]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += a.values[i] * b.values[j];
      }
    }
  }
};

}  // namespace glimpse::kernels::cuda
