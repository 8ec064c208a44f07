// The log-sum-exps that Pooling::probability_of_mean needs: of the mean over a group of its scores. A block for each
// choice and KV head reads the scores once. A unit whose slots have no scores of their own counts as one slot.
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr float kLog2OfE = 1.4426950408889634F;

__global__ void __launch_bounds__(kThreads) weigh_means_kernel(const __grid_constant__ SelectArguments of) {
  __shared__ LogSum warps[kThreads / 32];
  begin_kernel(of.cache, false);
  const Choice choice = of.choices[static_cast<int>(blockIdx.x) / of.cache.kv_heads];
  const int head = choice.head + static_cast<int>(blockIdx.x) % of.cache.kv_heads;
  if (choice.pooling != Pooling::probability_of_mean || head >= choice.head + choice.heads) return;
  const int slots = seen_slots(of.cache, choice.row, view_of(of.cache, choice.row, head));
  const int scored = choice.by_unit != 0 ? (slots + choice.block - 1) / choice.block : slots;
  const int first = choice.query < 0 ? 0 : choice.query;
  const int last = choice.query < 0 ? of.group : choice.query + 1;
  const std::size_t at = (static_cast<std::size_t>(choice.row) * of.cache.kv_heads + head) * of.group;
  const float share = kLog2OfE / static_cast<float>(last - first);
  LogSum own;
  for (int i = static_cast<int>(threadIdx.x); i < scored; i += kThreads) {
    float sum = 0;
    for (int query = first; query < last; ++query) sum += of.scores[(at + query) * of.stride + i];
    own.add({sum * share, 1.0F});
  }
  for (int step = 16; step > 0; step /= 2) own.add_from(~0U, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kThreads / 32; ++warp) own.add(warps[warp]);
  of.mean_lse[blockIdx.x] = own.value();
}

}  // namespace

void launch_weigh_means(const SelectArguments& of, const Limits& limits, CUstream_st* stream) {
  launch(weigh_means_kernel, of, dim3(of.count * of.cache.kv_heads, kThreads), 0, {limits, stream, false});
}

}  // namespace glimpse::kernels::cuda
