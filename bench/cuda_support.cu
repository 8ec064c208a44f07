#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

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

void fill_bytes(kernels::cuda::Memory& plane, const kernels::KvFormat& format, std::uint32_t seed) {
  constexpr std::size_t kApart = 4099;
  const std::size_t page_bytes = format.page_bytes();
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> some(std::min(plane.size() / page_bytes, kApart) * page_bytes);
  std::vector<float> row(static_cast<std::size_t>(format.dim));
  for (std::size_t page = 0; page < some.size(); page += page_bytes) {
    for (std::size_t slot = 0; slot < kernels::kPageTokens; ++slot) {
      float largest = 0;
      for (float& x : row) {
        x = normal(random);
        largest = std::max(largest, std::abs(x));
      }
      const float scale = largest / 127;
      std::byte* const to = some.data() + page + slot * format.row_bytes();
      for (std::size_t d = 0; d < row.size(); ++d) to[d] = static_cast<std::byte>(std::lround(row[d] / scale));
      std::memcpy(some.data() + page + format.scale_offset() + slot * sizeof scale, &scale, sizeof scale);
    }
  }
  for (std::size_t at = 0; at < plane.size(); at += some.size()) {
    plane.copy_in(at, std::span<const std::byte>(some).first(std::min(some.size(), plane.size() - at)));
  }
}

}  // namespace glimpse::bench
