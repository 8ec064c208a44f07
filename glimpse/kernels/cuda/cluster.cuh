// Blocks that do one piece of work together: a cluster of Hopper's, or one block elsewhere.
#pragma once

#include <cooperative_groups.h>

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
/// Of a kernel whose blocks are clusters of kClusterBlocks.
#define GLIMPSE_CLUSTER __cluster_dims__(::glimpse::kernels::cuda::kClusterBlocks, 1, 1)
#else
#define GLIMPSE_CLUSTER
#endif

namespace glimpse::kernels::cuda {

constexpr int kClusterBlocks = 8;

/// The blocks of one piece of work: a cluster, or one.
template <int kBlocks>
struct Blocks {
  __device__ static void synchronise() {
    if constexpr (kBlocks > 1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
      cooperative_groups::this_cluster().sync();
#endif
    } else {
      __syncthreads();
    }
  }
  /// Of this block's threads where it is `alone`, else of all.
  __device__ static void meet(bool alone) {
    if (alone) {
      __syncthreads();
    } else {
      synchronise();
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
};

}  // namespace glimpse::kernels::cuda
