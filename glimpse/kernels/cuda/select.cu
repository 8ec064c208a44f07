// The kernels of selection.cuh, and their launch.
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/selection.cuh"

namespace glimpse::kernels::cuda {
namespace {

using namespace selection;  // NOLINT(google-build-using-namespace): its kernels

constexpr int kFewThreads = 256;  ///< for few units, where many blocks share a processor
constexpr std::size_t kFewKeys = 4096;
/// So many units are one block's work: clusters begin late, the later the more of them there are.
constexpr std::size_t kAloneUnits = 1024, kAloneAmongMany = 16384;

template <int kBlocks, int kThreads>
__device__ void select_in(const SelectArguments& of) {
  extern __shared__ uint4 memory[];
  auto& room = *reinterpret_cast<Room*>(memory);
  let_next_begin();
  Selection<kBlocks, kThreads> selection(of, room, reinterpret_cast<std::uint32_t*>(memory + kRoomPieces));
  wait_for_launch_before();
  selection.run();
}

template <int kThreads>
__global__ void GLIMPSE_CLUSTER __launch_bounds__(kThreads, 1024 / kThreads)
    select_kernel(const __grid_constant__ SelectArguments of) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  select_in<kClusterBlocks, kThreads>(of);
#endif
}
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    select_alone_kernel(const __grid_constant__ SelectArguments of) {
  select_in<1, kThreads>(of);
}

}  // namespace

int select_blocks(const Limits& limits, int choices, std::size_t units) {
  const bool many = choices * kClusterBlocks > 3 * limits.processors;
  return limits.clusters && units > (many ? kAloneAmongMany : kAloneUnits) ? kClusterBlocks : 1;
}
std::size_t select_units(const Limits& limits) {
  return (static_cast<std::size_t>(limits.shared_bytes) - kRoomBytes) / sizeof(std::uint32_t);
}

void launch_select(const SelectArguments& of, const Limits& limits, CUstream_st* stream) {
  const std::size_t bytes = kRoomBytes + (of.spill == nullptr ? of.share * sizeof(std::uint32_t) : 0);
  const bool few = of.blocks > 1 && of.share <= kFewKeys;
  auto* const kernel = of.blocks == 1 ? select_alone_kernel
                       : few          ? select_kernel<kFewThreads>
                                      : select_kernel<kThreads>;
  allow_shared(kernel, static_cast<int>(bytes));
  const dim3 shape(of.count * of.blocks, few ? kFewThreads : kThreads);
  launch(kernel, of, shape, static_cast<int>(bytes), {limits, stream, of.blocks == 1});  // clusters begin slower early
}

}  // namespace glimpse::kernels::cuda
