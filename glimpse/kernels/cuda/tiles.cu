#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/prefill.cuh"
#include "glimpse/kernels/cuda/tiles.h"
#include "glimpse/kernels/cuda/tiles_hopper.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr double kLog2OfE = 1.4426950408889634;
constexpr int kThreads = 256;

template <class T, int kDim>
void launch_as(TileArguments of, int rows, cudaStream_t stream) {
  using Shape = PrefillShape<kDim>;
  Limits limits;
  auto* const kernel = prefill_kernel<T, kDim, TileArguments, TileBlock>;
  allow_shared(kernel, Shape::kBytes);
  of.each = (rows * of.prefill.group + Shape::kRows - 1) / Shape::kRows;
  launch(kernel, of, dim3(of.count * of.each * of.prefill.cache.kv_heads, kPrefillThreads), Shape::kBytes,
         {limits, stream, false});
}

template <class T>
void launch_of(const TileArguments& of, int rows, cudaStream_t stream) {
  switch (of.prefill.cache.dim) {
    case 64:
      return launch_as<T, 64>(of, rows, stream);
    case 96:
      return launch_as<T, 96>(of, rows, stream);
    case 128:
      return launch_as<T, 128>(of, rows, stream);
    default:
      return launch_as<T, 256>(of, rows, stream);
  }
}

/// A block for each tile and KV head, a thread for each dimension.
__global__ void __launch_bounds__(kThreads) mean_queries_kernel(const __grid_constant__ MeanQueriesOp of) {
  const int tile = static_cast<int>(blockIdx.x) / of.kv_heads;
  const int head = static_cast<int>(blockIdx.x) % of.kv_heads;
  const PromptRows rows = of.tiles.raw()[tile];
  const std::size_t heads = static_cast<std::size_t>(of.kv_heads) * of.group;
  for (int i = static_cast<int>(threadIdx.x); i < of.dim; i += kThreads) {
    float sum = 0;
    for (int row = 0; row < rows.rows; ++row) {
      for (int query = 0; query < of.group; ++query) {
        const std::size_t at = (rows.row + row) * heads + static_cast<std::size_t>(head) * of.group + query;
        sum += of.q.raw()[at * of.dim + i];
      }
    }
    of.out.raw()[static_cast<std::size_t>(blockIdx.x) * of.dim + i] = sum / static_cast<float>(rows.rows * of.group);
  }
}

}  // namespace

void attend_tiles(Stream& stream, const TilesOp& op) {
  require_halves(op.cache.format);
  check(op.group > 0, "a group of no query heads");
  if (op.count == 0 || op.rows == 0) return;
  TileArguments of;
  of.prefill.cache = {.type = op.cache.format.type,
                      .dim = op.cache.format.dim,
                      .kv_heads = op.cache.kv_heads,
                      .sequences = op.cache.sequences,
                      .views = op.cache.views.raw()};
  of.prefill.group = op.group;
  of.prefill.scale = static_cast<float>(static_cast<double>(op.scale) * kLog2OfE);
  of.prefill.q = op.q.raw();
  of.prefill.out = op.out.raw();
  of.tiles = op.tiles.raw();
  of.count = op.count;
  of.reads = op.reads.raw();
  of.set_slots = op.sets.slots.raw();
  of.set_count = op.sets.count.raw();
  of.set_capacity = op.sets.capacity;
  auto* const raw = static_cast<cudaStream_t>(stream.raw());
  if (has_tiles_hopper(stream.device().capability, op.cache.format.dim)) return launch_tiles_hopper(of, op.rows, raw);
  if (op.cache.format.type == KvType::f16) return launch_of<__half>(of, op.rows, raw);
  launch_of<__nv_bfloat16>(of, op.rows, raw);
}

void mean_queries(Stream& stream, const MeanQueriesOp& op) {
  if (op.count == 0) return;
  Limits limits;
  launch(mean_queries_kernel, op, dim3(op.count * op.kv_heads, kThreads), 0,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace glimpse::kernels::cuda
