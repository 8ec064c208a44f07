#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/wide_rows.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kMostTiles = 4096;

template <int kRows>
void launch_of(Stream& stream, const WideArguments& of) {
  constexpr int kBytes = WideShape<kRows>::kBytes;
  auto* const kernel = wide_kernel<kRows>;
  allow_shared(kernel, kBytes);
  Limits limits;
  limits.clusters = true;
  const int blocks = std::min(of.units, stream.device().processors);
  launch(kernel, of, dim3(static_cast<unsigned>(blocks), kWideThreads), kBytes,
         {limits, static_cast<cudaStream_t>(stream.raw())});
}

}  // namespace

bool has_wide_rows(const Stream& stream, int inputs) {
  return GLIMPSE_COMPILES_FOR_HOPPER != 0 && stream.device().capability == 90 && inputs > 0 &&
         inputs % kWideInputs == 0;
}

WideSpace make_wide_space(Stream& stream) {
  const auto blocks = static_cast<std::size_t>(stream.device().processors);
  WideSpace space{Array<float>(stream, blocks * 2 * kMostWideRows / 2 * kWideWorkerThreads),
                  Array<unsigned>(stream, kMostTiles)};
  space.arrived.memory().fill(std::byte{0});
  return space;
}

void multiply_wide_rows(Stream& stream, const WideSpace& space, const WideRowsOp& op) {
  check(has_wide_rows(stream, op.inputs), "a device that has products of wide rows");
  check(op.rows > 0 && op.rows <= kMostWideRows && op.outputs > 0, "up to 64 rows");
  const int tiles = (op.outputs + kWideOutputs - 1) / kWideOutputs, chunks = op.inputs / kWideInputs;
  check(tiles <= kMostTiles, "tiles that have counters");
  check(op.out || (op.gated && op.outputs % 16 == 0), "sums, or gates of whole sixteens");
  const WideArguments of{reinterpret_cast<const std::byte*>(op.weight.raw()),
                         reinterpret_cast<const std::byte*>(op.in.raw()),
                         op.out.raw(),
                         op.gated.raw(),
                         space.partials.pointer().raw(),
                         space.arrived.pointer().raw(),
                         op.outputs,
                         op.inputs,
                         op.rows,
                         op.stride,
                         chunks,
                         tiles * chunks};
  if (op.rows <= 16) return launch_of<16>(stream, of);
  if (op.rows <= 32) return launch_of<32>(stream, of);
  if (op.rows <= 48) return launch_of<48>(stream, of);
  launch_of<64>(stream, of);
}

}  // namespace glimpse::kernels::cuda
