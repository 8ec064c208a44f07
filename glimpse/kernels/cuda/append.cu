#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace {

/// The bits that base/dtype.h's functions give: round to nearest even; NaN stays NaN.
__device__ std::uint16_t bits_of(float x, KvType type) {
  const std::uint32_t bits = __float_as_uint(x);
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  if (type == KvType::bf16) {
    if (nan) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
    return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
  }
  if (nan) return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | 0x7e00U);
  return __half_as_ushort(__float2half_rn(x));
}

/// A block for each row and KV head; a thread for each two dimensions of K and V.
__global__ void append_kernel(const __grid_constant__ AppendArguments of) {
  begin_kernel(of.cache, true);
  const int row = static_cast<int>(blockIdx.x) / of.cache.kv_heads;
  const HeadView& view = view_of(of.cache, row, static_cast<int>(blockIdx.x) % of.cache.kv_heads);
  const int slot = seen_slots(of.cache, row, view) - 1;
  const std::size_t to =
      (static_cast<std::size_t>(view.pages[slot >> kPageShift]) * kPageTokens + (slot & (kPageTokens - 1))) *
      static_cast<std::size_t>(of.cache.dim);
  const std::size_t from = static_cast<std::size_t>(blockIdx.x) * of.cache.dim;
  for (int d = static_cast<int>(threadIdx.x) * 2; d < of.cache.dim; d += static_cast<int>(blockDim.x) * 2) {
    const auto both = [&](const float* x) {
      return make_ushort2(bits_of(x[from + d], of.cache.type), bits_of(x[from + d + 1], of.cache.type));
    };
    *reinterpret_cast<ushort2*>(reinterpret_cast<std::uint16_t*>(view.k_plane) + to + d) = both(of.k);
    *reinterpret_cast<ushort2*>(reinterpret_cast<std::uint16_t*>(view.v_plane) + to + d) = both(of.v);
  }
}

}  // namespace

void launch_append(const AppendArguments& arguments, const Limits& limits, CUstream_st* stream) {
  launch(append_kernel, arguments, dim3(arguments.cache.rows * arguments.cache.kv_heads, 64), 0, {limits, stream});
}

}  // namespace glimpse::kernels::cuda
