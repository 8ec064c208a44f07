#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/launch.cuh"

namespace glimpse::kernels::cuda {
namespace {

/// A block for each row and KV head; a thread for each two dimensions of K and V.
__global__ void append_kernel(const __grid_constant__ AppendArguments of) {
  begin_kernel(of.cache, true);
  const int row = static_cast<int>(blockIdx.x) / of.cache.kv_heads;
  const HeadView& view = view_of(of.cache, row, static_cast<int>(blockIdx.x) % of.cache.kv_heads);
  const std::size_t to = own_row(of.cache, row, view);
  const std::size_t from = static_cast<std::size_t>(blockIdx.x) * of.cache.dim;
  for (int d = static_cast<int>(threadIdx.x) * 2; d < of.cache.dim; d += static_cast<int>(blockDim.x) * 2) {
    const auto both = [&](const float* x) {
      return make_ushort2(cache_bits(x[from + d], of.cache.type), cache_bits(x[from + d + 1], of.cache.type));
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
