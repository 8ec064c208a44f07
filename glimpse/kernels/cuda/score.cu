#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/score.cuh"

namespace glimpse::kernels::cuda {
namespace {

template <class T, int kDim, int kTiles>
void launch_as(ScoreArguments of, const Limits& limits, cudaStream_t stream) {
  constexpr int kWarps = kDim > 128 ? 4 : 8;
  using Shape = ScoreShape<T, kDim, kTiles, kWarps>;
  static_assert(Shape::kFixed + Shape::kStage <= kLeastShared);
  of.stages = stages_that_fit(limits, Shape::kFixed, Shape::kStage, kScaled<T> ? Shape::KeyFeed::kMostStages : 3);
  const int bytes = Shape::kFixed + of.stages * Shape::kStage;
  auto* const kernel = score_kernel<T, kDim, kTiles, kWarps>;
  allow_shared(kernel, bytes);
  launch(kernel, of, dim3(limits.processors, Shape::kThreads), bytes, {limits, stream});
}

template <class T>
void launch_of(ScoreArguments of, const Limits& limits, cudaStream_t stream) {
  of.slice = of.cache.dim > 128 ? 8 : kTileQueries;
  of.slices = (of.group + of.slice - 1) / of.slice;
  const bool one = of.group <= 8;
  switch (of.cache.dim) {
    case 64:
      return one ? launch_as<T, 64, 1>(of, limits, stream) : launch_as<T, 64, 2>(of, limits, stream);
    case 96:
      return one ? launch_as<T, 96, 1>(of, limits, stream) : launch_as<T, 96, 2>(of, limits, stream);
    case 128:
      return one ? launch_as<T, 128, 1>(of, limits, stream) : launch_as<T, 128, 2>(of, limits, stream);
    default:
      return launch_as<T, 256, 1>(of, limits, stream);
  }
}

}  // namespace

void launch_score(const ScoreArguments& arguments, const Limits& limits, CUstream_st* stream) {
  for_stored(arguments.cache.type, [&](auto type) { launch_of<decltype(type)>(arguments, limits, stream); });
}

}  // namespace glimpse::kernels::cuda
