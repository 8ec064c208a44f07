// Boxes of a matrix of bf16 that the hardware copies to shared memory (boxes.cuh), 64 values of each of so many rows.
// Inside kernels/cuda only; host code.
#pragma once

#include <cuda.h>

namespace glimpse::kernels::cuda {

inline constexpr int kBoxWidth = 64;  ///< values

/// How the hardware finds boxes of `box_rows` rows, at most 256, in a matrix [rows, width] of the device that begins at
/// a multiple of 16 bytes; width in multiples of 8. A kernel takes it as an argument (__grid_constant__).
CUtensorMap box_map(const void* from, int width, int rows, int box_rows);

}  // namespace glimpse::kernels::cuda
