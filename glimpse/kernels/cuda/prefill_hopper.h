// The kernel of PrefillOp for Hopper's warpgroup products, beside the one of arguments.h for every device. Private to
// this folder.
#pragma once

#include "glimpse/kernels/cuda/arguments.h"

namespace glimpse::kernels::cuda {

/// Whether this build has it for a device of that compute capability, and for that head dimension (64 and 128).
bool has_prefill_hopper(int capability, int dim);

struct HopperArguments {
  PrefillArguments prefill;
  Partials partials;
  int splits = 1;  ///< blocks that share the keys of a tile of rows, at most: launch_prefill_hopper chooses
};

/// Tiles of keys that a block takes at least, where several share them.
inline constexpr int kHopperTiles = 4;

void launch_prefill_hopper(const HopperArguments& arguments, const Limits& limits, CUstream_st* stream);

}  // namespace glimpse::kernels::cuda
