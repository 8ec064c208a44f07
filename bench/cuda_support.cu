#include <cuda_bf16.h>

#include "bench/cuda_support.h"

namespace glimpse::bench {
namespace {

__device__ std::uint32_t scramble(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

/// The sum of four uniform bytes, scaled: enough of a normal distribution for scores to look like a model's.
__device__ float normal(std::uint32_t random) {
  const float sum = static_cast<float>((random & 255U) + (random >> 8 & 255U) + (random >> 16 & 255U) + (random >> 24));
  return (sum - 510.0F) * (1 / 147.8F);
}

__global__ void fill_kernel(__nv_bfloat162* to, std::size_t pairs, std::uint32_t seed) {
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < pairs;
       i += static_cast<std::size_t>(gridDim.x) * blockDim.x) {
    const auto low = static_cast<std::uint32_t>(i) * 2;
    const std::uint32_t high = seed + static_cast<std::uint32_t>(i >> 31) * 0x9e3779b9U;
    to[i] = __floats2bfloat162_rn(normal(scramble(low ^ scramble(high))), normal(scramble((low + 1) ^ scramble(high))));
  }
}

cudaStream_t raw(kernels::cuda::Stream& stream) {
  return static_cast<cudaStream_t>(stream.raw());
}

}  // namespace

void fill_normal(kernels::cuda::Stream& stream, std::byte* to, std::size_t count, std::uint32_t seed) {
  fill_kernel<<<stream.device().processors * 8, 256, 0, raw(stream)>>>(reinterpret_cast<__nv_bfloat162*>(to), count / 2,
                                                                       seed);
}

}  // namespace glimpse::bench
