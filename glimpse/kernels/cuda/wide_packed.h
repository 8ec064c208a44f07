// Host code of the kernels of wide_rows.h for quantised weights. Inside kernels/cuda only.
#pragma once

#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/wide_share.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kPackedWorkers = 4;                    ///< warpgroups that multiply
inline constexpr int kPackedOutputs = kPackedWorkers * 64;  ///< of a tile

void launch_wide_packed(Stream& stream, const Packing& packing, const WideArguments& of);

/// As many blocks as the device has processors, or units.
template <class Arguments>
void launch_wide(Stream& stream, void (*kernel)(Arguments), const Arguments& arguments, int units, int threads,
                 int bytes) {
  allow_shared(kernel, bytes);
  Limits limits;
  limits.clusters = true;
  const int blocks = units < stream.device().processors ? units : stream.device().processors;
  launch(kernel, arguments, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(threads)), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw())});
}

}  // namespace glimpse::kernels::cuda
