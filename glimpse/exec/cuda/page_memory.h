// The planes of the KV cache in the memory of a GPU; its pages wait in pinned memory of the host.
#pragma once

#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kv/page_memory.h"

namespace glimpse::exec::cuda {

/// Makes planes on the stream's device, filled with zeros: kernels multiply what lies behind a sequence's end by zero.
/// The stream must outlive them. Throws UserError when the device's memory is short.
kv::MakePageMemory page_memory_on(kernels::cuda::Stream& stream);

}  // namespace glimpse::exec::cuda
