#include "glimpse/kernels/cuda/prefill_hopper.cuh"
#include "glimpse/kernels/cuda/prefill_hopper.h"

namespace glimpse::kernels::cuda {
namespace {

template <class T, int kDim>
void launch_as(const PrefillArguments& of, const Limits& limits, cudaStream_t stream) {
  using Shape = HopperShape<kDim>;
  auto* const kernel = prefill_hopper_kernel<T, kDim>;
  allow_shared(kernel, Shape::kBytes);
  const int tiles = (of.prompt.rows * of.group + Shape::kRows - 1) / Shape::kRows;
  launch(kernel, of, dim3(tiles * of.cache.kv_heads, Shape::kThreads), Shape::kBytes, {limits, stream});
}

template <class T>
void launch_of(const PrefillArguments& of, const Limits& limits, cudaStream_t stream) {
  if (of.cache.dim == 64) return launch_as<T, 64>(of, limits, stream);
  launch_as<T, 128>(of, limits, stream);
}

}  // namespace

bool has_prefill_hopper(int capability, int dim) {
  return GLIMPSE_COMPILES_FOR_HOPPER != 0 && capability == 90 && (dim == 64 || dim == 128);
}

void launch_prefill_hopper(const PrefillArguments& arguments, const Limits& limits, CUstream_st* stream) {
  if (arguments.cache.type == KvType::f16) return launch_of<__half>(arguments, limits, stream);
  launch_of<__nv_bfloat16>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
