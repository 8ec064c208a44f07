// Which instance of the attend kernel serves a shape. One .cu file for each element type.
#pragma once

#include "glimpse/kernels/cuda/attend.cuh"
#include "glimpse/kernels/cuda/launch.cuh"

namespace glimpse::kernels::cuda {

/// A block for each processor, or two with half of its memory each: then the next launch's begin where one has ended.
template <class T, int kDim, int kTiles, int kWarps>
void launch_attend_as(AttendArguments of, Limits limits, cudaStream_t stream) {
  // Bytes are half as much to bring and more to do: larger tiles do some of it once.
  constexpr int kKeys = kScaled<T> && kTiles == 1 && kDim <= 128 ? 32 : 16;
  constexpr int kBlocks = attend_blocks(kDim, kWarps), kReserved = 1024;  // bytes of a block's memory
  using Shape = AttendShape<T, kDim, kTiles, kKeys, kWarps>;
  static_assert(Shape::kFixed + Shape::kStage <= (kLeastShared + kReserved) / kBlocks - kReserved);
  limits.shared_bytes = (limits.shared_bytes + kReserved) / kBlocks - kReserved;
  of.stages = stages_that_fit(limits, Shape::kFixed, Shape::kStage, Shape::KvFeed::kMostStages);
  const int bytes = Shape::kFixed + of.stages * Shape::kStage;
  auto* const kernel = attend_kernel<T, kDim, kTiles, kKeys, kWarps>;
  allow_shared(kernel, bytes);
  launch(kernel, of, dim3(kBlocks * limits.processors, Shape::kThreads), bytes, {limits, stream});
}

/// Two blocks read the last hundredth more slowly, and have twice as many results to add up. Of many heads they are
/// faster with the shortest lists and the longest contexts.
inline bool takes_two_blocks(const AttendArguments& of) {
  constexpr std::int64_t kMostHeads = 128, kMostSlots = 1 << 22;
  constexpr int kShortLists = 256, kLongContexts = 16384;
  const std::int64_t heads = std::int64_t{of.cache.rows} * of.cache.kv_heads;
  if (heads > kMostHeads || heads * of.cache.longest > kMostSlots) return false;
  if (heads <= kFewUnits) return true;
  return of.set_capacity > 0 ? of.set_capacity <= kShortLists : of.cache.longest > kLongContexts;
}

template <class T, int kDim>
void launch_attend_up_to_eight(const AttendArguments& of, const Limits& limits, cudaStream_t stream) {
  if constexpr (!kScaled<T>) {
    if (takes_two_blocks(of)) return launch_attend_as<T, kDim, 1, 4>(of, limits, stream);
  }
  launch_attend_as<T, kDim, 1, 8>(of, limits, stream);
}

template <class T>
void launch_attend_of(AttendArguments of, const Limits& limits, cudaStream_t stream) {
  of.slice = of.cache.dim > 128 ? 8 : kTileQueries;
  of.slices = (of.group + of.slice - 1) / of.slice;
  const bool one = of.group <= 8;
  switch (of.cache.dim) {
    case 64:
      return one ? launch_attend_up_to_eight<T, 64>(of, limits, stream)
                 : launch_attend_as<T, 64, 2, 8>(of, limits, stream);
    case 96:
      return one ? launch_attend_up_to_eight<T, 96>(of, limits, stream)
                 : launch_attend_as<T, 96, 2, 8>(of, limits, stream);
    case 128:
      return one ? launch_attend_up_to_eight<T, 128>(of, limits, stream)
                 : launch_attend_as<T, 128, 2, 8>(of, limits, stream);
    default:
      return launch_attend_as<T, 256, 1, 4>(of, limits, stream);
  }
}

}  // namespace glimpse::kernels::cuda
