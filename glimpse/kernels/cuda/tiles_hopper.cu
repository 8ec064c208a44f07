// The kernel of tiles.h by warpgroup products: a block of prefill_hopper.cuh whose keys come in the order of a list.
#include "glimpse/kernels/cuda/key_order.cuh"
#include "glimpse/kernels/cuda/prefill_hopper.cuh"
#include "glimpse/kernels/cuda/tiles_hopper.h"

namespace glimpse::kernels::cuda {
namespace {

template <class T, int kDim>
__global__ void __launch_bounds__(HopperShape<kDim>::kThreads, 1)
    tiles_hopper_kernel(const __grid_constant__ TileArguments arguments) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = HopperShape<kDim>;
  const PrefillArguments& of = arguments.prefill;
  __shared__ HopperHandover<kDim> handover;
  extern __shared__ uint4 memory[];
  const std::uint32_t base = (shared_address(memory) + 1023U) & ~1023U;
  const std::uint32_t keys = base + Shape::kQueryBytes;
  if (threadIdx.x == 0) make_handover<kDim>(handover);
  __syncthreads();
  const TileBlock block(arguments, Shape::kRows);
  if (block.count <= 0) return;
  const int before = block.view.slots - block.prompt.behind + 1 - block.order.shift;  // that the first row sees
  const int least = before + block.first / of.group;                                  // that the first row here sees
  const int seen = before + (block.first + block.count - 1) / of.group;
  const int end = (seen + Shape::kKeys - 1) / Shape::kKeys;
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == Shape::kWorkers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    HopperGather<kDim, KeyOrder>(block.view, block.order, seen, keys, handover).run(0, end);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const std::size_t heads = static_cast<std::size_t>(of.cache.kv_heads) * of.group;
    const auto row_at = [&](int row) {  // of [R, H]
      const int token = block.prompt.row + (block.first + row) / of.group;
      return token * heads + static_cast<std::size_t>(block.head) * of.group + (block.first + row) % of.group;
    };
    const std::uint32_t queries = base + group * Shape::kBlocks * Shape::kQueryBlock;
    bring_queries<T, kDim>(of, group, block.count, queries, row_at);
    meet(3 + group, 128);
    if (group == 1) pass_on(1, Shape::kWorkers * 128);
    HopperRows<T, kDim> rows(queries, keys, handover, fabsf(of.scale), group);
    const int own = group * 64 + static_cast<int>(threadIdx.x) % 128 / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int sees[2] = {min(seen, before + (block.first + own) / of.group),
                         min(seen, before + (block.first + own + 8) / of.group)};
    rows.run(0, end, block.view.positions == nullptr ? least / Shape::kKeys : 0, sees);
    if (group == 0) meet(1, Shape::kWorkers * 128);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own + r * 8;
      if (row < block.count) rows.write(r, of.out + row_at(row) * kDim, nullptr);
    }
  }
#endif
}

template <class T, int kDim>
void launch_as(TileArguments of, int rows, cudaStream_t stream) {
  using Shape = HopperShape<kDim>;
  Limits limits;
  auto* const kernel = tiles_hopper_kernel<T, kDim>;
  allow_shared(kernel, Shape::kBytes);
  of.each = (rows * of.prefill.group + Shape::kRows - 1) / Shape::kRows;
  launch(kernel, of, dim3(of.count * of.each * of.prefill.cache.kv_heads, Shape::kThreads), Shape::kBytes,
         {limits, stream, false});
}

template <class T>
void launch_of(const TileArguments& of, int rows, cudaStream_t stream) {
  if (of.prefill.cache.dim == 64) return launch_as<T, 64>(of, rows, stream);
  launch_as<T, 128>(of, rows, stream);
}

}  // namespace

bool has_tiles_hopper(int capability, int dim) {
  return GLIMPSE_COMPILES_FOR_HOPPER != 0 && capability == 90 && (dim == 64 || dim == 128);
}

void launch_tiles_hopper(TileArguments arguments, int rows, CUstream_st* stream) {
  if (arguments.prefill.cache.type == KvType::f16) return launch_of<__half>(arguments, rows, stream);
  launch_of<__nv_bfloat16>(arguments, rows, stream);
}

}  // namespace glimpse::kernels::cuda
