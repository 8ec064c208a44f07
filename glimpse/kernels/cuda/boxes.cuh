// Copies of boxes (boxes.h) to shared memory, laid as wgmma reads them (wgmma.cuh); what is behind the matrix becomes
// zeros. For code for compute capability 9.0 and later.
#pragma once

#include "glimpse/kernels/cuda/boxes.h"
#include "glimpse/kernels/cuda/copies.cuh"

namespace glimpse::kernels::cuda {

/// Asks for the box at (row, column); its bytes join a barrier's turn. Of kOnce see read_once().
template <bool kOnce>
__device__ inline void copy_box(std::uint32_t to, const CUtensorMap& map, int row, int column, std::uint32_t barrier) {
  if constexpr (kOnce) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
        "{%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier), "l"(read_once())
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(to),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
  }
}

}  // namespace glimpse::kernels::cuda
