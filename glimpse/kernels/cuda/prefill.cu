#include "glimpse/kernels/cuda/prefill.cuh"

namespace glimpse::kernels::cuda {
namespace {

template <class T>
void launch_of(const PrefillArguments& of, const Limits& limits, cudaStream_t stream) {
  switch (of.cache.dim) {
    case 64:
      return launch_prefill_as<T, 64>(of, limits, stream);
    case 96:
      return launch_prefill_as<T, 96>(of, limits, stream);
    case 128:
      return launch_prefill_as<T, 128>(of, limits, stream);
    default:
      return launch_prefill_as<T, 256>(of, limits, stream);
  }
}

}  // namespace

void launch_prefill(const PrefillArguments& arguments, const Limits& limits, CUstream_st* stream) {
  if (arguments.cache.type == KvType::f16) return launch_of<__half>(arguments, limits, stream);
  launch_of<__nv_bfloat16>(arguments, limits, stream);
}

}  // namespace glimpse::kernels::cuda
