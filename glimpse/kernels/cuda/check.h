// What to do when CUDA says no. Private to this folder and to exec/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "glimpse/kernels/cuda/arguments.h"

namespace glimpse::kernels::cuda {

/// Out of memory is the user's (UserError); anything else is a bug or a broken device (InternalError).
void check_cuda(cudaError_t error, const char* doing);

}  // namespace glimpse::kernels::cuda
