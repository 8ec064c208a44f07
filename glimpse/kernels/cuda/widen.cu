// The kernel of widen.h: a thread for eight values of a row of K or V.
#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/widen.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct WidenArguments {
  WidenOp op;
  int heads = 1, dim = 0, blocks = 1;  ///< blocks of a plane of a head
};

__global__ void __launch_bounds__(kThreads) widen_kernel(const __grid_constant__ WidenArguments of) {
  const int part = static_cast<int>(blockIdx.x) % of.blocks, plane = static_cast<int>(blockIdx.x) / of.blocks % 2;
  const int head = static_cast<int>(blockIdx.x) / of.blocks / 2;
  const std::size_t number =
      static_cast<std::size_t>(of.op.sequence) * static_cast<std::size_t>(of.heads) + static_cast<std::size_t>(head);
  const HeadView& from = of.op.from.views.raw()[number];
  const HeadView& to = of.op.to.views.raw()[number];
  const int eights = of.dim / 8, at = part * kThreads + static_cast<int>(threadIdx.x);
  const int slot = at / eights, eight = at % eights;
  if (slot >= from.slots) return;
  const std::byte* const bytes = plane == 0 ? from.k_plane : from.v_plane;
  const std::size_t row = row_number(from, slot);
  const float scale = *reinterpret_cast<const float*>(bytes + scale_offset<std::int8_t>(row, of.dim));
  const uint4 wide =
      eight_halves(reinterpret_cast<const uint2*>(bytes + row_offset<std::int8_t>(row, of.dim))[eight], scale);
  std::byte* const halves = plane == 0 ? to.k_plane : to.v_plane;
  reinterpret_cast<uint4*>(halves + row_offset<__half>(row_number(to, slot), of.dim))[eight] = wide;
}

}  // namespace

void widen(Stream& stream, const WidenOp& op) {
  require_supported(op.from.format);
  check(op.from.format.type == KvType::q8_0 && op.to.format.type == KvType::f16, "bytes are widened to f16");
  if (op.most == 0) return;
  const int dim = op.from.format.dim;
  const std::int64_t threads = std::int64_t{op.most} * (dim / 8);
  const WidenArguments of{op, op.from.kv_heads, dim, static_cast<int>((threads + kThreads - 1) / kThreads)};
  launch(widen_kernel, of, dim3(static_cast<unsigned>(of.blocks * 2 * of.heads), kThreads), 0,
         {Limits(), static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace glimpse::kernels::cuda
