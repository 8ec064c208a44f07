// The kernel that measuring itself needs: random rows. Device memory; queued on the stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::bench {

/// `count` bf16 values, normal to the eye, of standard deviation one. Different for each seed.
void fill_normal(kernels::cuda::Stream& stream, std::byte* to, std::size_t count, std::uint32_t seed);
/// A plane of a q8_0 cache: rows of random bytes and scales, the same ones every few thousand pages. Waits.
void fill_bytes(kernels::cuda::Memory& plane, const kernels::KvFormat& format, std::uint32_t seed);

}  // namespace glimpse::bench
