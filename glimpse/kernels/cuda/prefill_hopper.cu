#include <algorithm>

#include "glimpse/kernels/cuda/prefill_hopper.cuh"
#include "glimpse/kernels/cuda/prefill_hopper.h"

namespace glimpse::kernels::cuda {
namespace {

template <class T, int kDim>
void launch_as(HopperArguments of, const Limits& limits, cudaStream_t stream) {
  using Shape = HopperShape<kDim>;
  auto* const kernel = prefill_hopper_kernel<T, kDim>;
  allow_shared(kernel, Shape::kBytes);
  const int rows = of.prefill.prompt.rows * of.prefill.group;
  const int blocks = (rows + Shape::kRows - 1) / Shape::kRows * of.prefill.cache.kv_heads * of.prefill.count;
  // Parts of all blocks of one turn of the device fit into the partial results.
  static_assert(Shape::kRows * (kDim + 2) <= 2 * kRangesOfBlock * partial_values(256));
  constexpr int kMost = 32;  // for one block adds up all parts
  of.splits = std::clamp(limits.processors / blocks, 1, kMost);
  launch(kernel, of, dim3(blocks * of.splits, Shape::kThreads), Shape::kBytes, {limits, stream});
}

template <class T>
void launch_of(const HopperArguments& of, const Limits& limits, cudaStream_t stream) {
  if (of.prefill.cache.dim == 64) return launch_as<T, 64>(of, limits, stream);
  launch_as<T, 128>(of, limits, stream);
}

}  // namespace

bool has_prefill_hopper(int capability, int dim) {
  return GLIMPSE_COMPILES_FOR_HOPPER != 0 && capability == 90 && (dim == 64 || dim == 128);
}

void launch_prefill_hopper(const HopperArguments& arguments, const Limits& limits, CUstream_st* stream) {
  if (arguments.prefill.cache.type == KvType::f16) return launch_of<__half>(arguments, limits, stream);
  launch_of<__nv_bfloat16>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
