#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/launch.cuh"

namespace glimpse::kernels::cuda {
namespace {

/// A block for each row and KV head: a warp for K and one for V, whose lanes have pairs of dimensions.
__global__ void append_kernel(const __grid_constant__ AppendArguments of) {
  begin_kernel(of.cache, true);
  const int row = static_cast<int>(blockIdx.x) / of.cache.kv_heads;
  const HeadView& view = view_of(of.cache, row, static_cast<int>(blockIdx.x) % of.cache.kv_heads);
  const bool is_k = threadIdx.x < 32;
  const OwnRow to(of.cache, is_k ? view.k_plane : view.v_plane, own_row(of.cache, row, view));
  const float* const from = (is_k ? of.k : of.v) + static_cast<std::size_t>(blockIdx.x) * of.cache.dim;
  write_pairs(to, of.cache.dim, [from](int pair) { return reinterpret_cast<const float2*>(from)[pair]; });
}

}  // namespace

void launch_append(const AppendArguments& arguments, const Limits& limits, CUstream_st* stream) {
  launch(append_kernel, arguments, dim3(arguments.cache.rows * arguments.cache.kv_heads, 64), 0, {limits, stream});
}

}  // namespace glimpse::kernels::cuda
