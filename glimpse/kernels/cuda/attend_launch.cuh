// Which instance of the attend kernel serves a shape. One .cu file for each element type.
#pragma once

#include "glimpse/kernels/cuda/attend.cuh"
#include "glimpse/kernels/cuda/launch.cuh"

namespace glimpse::kernels::cuda {

template <class T, int kDim, int kTiles>
void launch_attend_as(AttendArguments of, const Limits& limits, cudaStream_t stream) {
  // Bytes are half as much to bring and more to do: larger tiles do some of it once.
  constexpr int kKeys = kScaled<T> && kTiles == 1 && kDim <= 128 ? 32 : 16;
  constexpr int kWarps = kDim > 128 ? 4 : 8;
  using Shape = AttendShape<T, kDim, kTiles, kKeys, kWarps>;
  of.stages = stages_that_fit(limits, Shape::kFixed, Shape::kStage, Shape::KvFeed::kMostStages);
  const int bytes = Shape::kFixed + of.stages * Shape::kStage;
  auto* const kernel = attend_kernel<T, kDim, kTiles, kKeys, kWarps>;
  allow_shared(kernel, bytes);
  launch(kernel, of, dim3(limits.processors, Shape::kThreads), bytes, {limits, stream});
}

template <class T>
void launch_attend_of(AttendArguments of, const Limits& limits, cudaStream_t stream) {
  of.slice = of.cache.dim > 128 ? 8 : kTileQueries;
  of.slices = (of.group + of.slice - 1) / of.slice;
  const bool one = of.group <= 8;
  switch (of.cache.dim) {
    case 64:
      return one ? launch_attend_as<T, 64, 1>(of, limits, stream) : launch_attend_as<T, 64, 2>(of, limits, stream);
    case 96:
      return one ? launch_attend_as<T, 96, 1>(of, limits, stream) : launch_attend_as<T, 96, 2>(of, limits, stream);
    case 128:
      return one ? launch_attend_as<T, 128, 1>(of, limits, stream) : launch_attend_as<T, 128, 2>(of, limits, stream);
    default:
      return launch_attend_as<T, 256, 1>(of, limits, stream);
  }
}

}  // namespace glimpse::kernels::cuda
