// The kernel of attend_tiles for Hopper's warpgroup products. Private to this folder.
#pragma once

#include "glimpse/kernels/cuda/arguments.h"

namespace glimpse::kernels::cuda {

/// Whether this build has it for a device of that compute capability, and for that head dimension (64 and 128).
bool has_tiles_hopper(int capability, int dim);

/// Tiles of up to `rows` rows.
void launch_tiles_hopper(TileArguments arguments, int rows, CUstream_st* stream);

}  // namespace glimpse::kernels::cuda
