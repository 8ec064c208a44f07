#include "glimpse/kernels/cuda/packings.h"
#include "glimpse/kernels/cuda/wide_packed.cuh"
#include "glimpse/kernels/cuda/wide_packed.h"

namespace glimpse::kernels::cuda {
namespace {

template <int kBits, Scales kScales, int kRows>
void launch_rows(Stream& stream, const WideArguments& of) {
  launch_wide(stream, packed_kernel<kBits, kScales, kRows>, of, of.units, kPackedThreads,
              PackedShape<Packing{kBits, kScales}, kRows>::kBytes);
}

template <int kBits, Scales kScales>
void launch_packing(Stream& stream, const WideArguments& of) {
  if (of.rows <= 16) return launch_rows<kBits, kScales, 16>(stream, of);
  if (of.rows <= 32) return launch_rows<kBits, kScales, 32>(stream, of);
  launch_rows<kBits, kScales, 64>(stream, of);
}

}  // namespace

void launch_wide_packed(Stream& stream, const Packing& packing, const WideArguments& of) {
  with_packing(packing, [&]<int bits, Scales scales>() {
    if constexpr (scales != Scales::none) launch_packing<bits, scales>(stream, of);
  });
}

}  // namespace glimpse::kernels::cuda
