// The kernels that measuring itself needs: random rows, and plain reads, whose speed everything is a fraction of.
// Device memory; queued on the stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::bench {

/// `count` bf16 values, normal to the eye, of standard deviation one. Different for each seed.
void fill_normal(kernels::cuda::Stream& stream, std::byte* to, std::size_t count, std::uint32_t seed);

/// Reads `bytes` (a multiple of 16 KiB) once; `sum` [1] keeps the compiler from leaving them unread.
void read_all(kernels::cuda::Stream& stream, const std::byte* from, std::size_t bytes, unsigned* sum);

}  // namespace glimpse::bench
