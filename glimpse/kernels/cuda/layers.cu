#include <cuda_bf16.h>

#include "glimpse/kernels/cuda/check.h"
#include "glimpse/kernels/cuda/layers.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ Bf16 bits_of(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/// The sum over a block's threads, the same in each, in a fixed order.
__device__ float block_sum(float own) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0U, own, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += warps[w];
  return sum;
}

/// A block for each row.
__global__ void embed_kernel(const __grid_constant__ EmbedOp of) {
  const std::size_t from = static_cast<std::size_t>(of.tokens.raw()[blockIdx.x]) * of.width;
  const std::size_t to = static_cast<std::size_t>(blockIdx.x) * of.width;
  for (int i = static_cast<int>(threadIdx.x); i < of.width; i += kThreads) {
    of.out.raw()[to + i] = __uint_as_float(static_cast<std::uint32_t>(of.table.raw()[from + i]) << 16);
  }
}

/// A block for each row.
__global__ void normalise_kernel(const __grid_constant__ NormaliseOp of) {
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * of.width;
  float* const row = of.residual.raw() + at;
  const float* const delta = of.delta ? of.delta.raw() + at : nullptr;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < of.width; i += kThreads) {
    float x = row[i];
    if (delta != nullptr) {
      x += delta[i];
      row[i] = x;
    }
    squares += x * x;
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(of.width) + of.epsilon);
  for (int i = static_cast<int>(threadIdx.x); i < of.width; i += kThreads) {
    of.out.raw()[at + i] = bits_of(row[i] * scale * of.weight.raw()[i]);
  }
}

/// A warp for each head of q, k and v of each row.
__global__ void split_qkv_kernel(const __grid_constant__ QkvOp of) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int all = of.heads + 2 * of.kv_heads;
  const std::size_t number = static_cast<std::size_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const auto row = static_cast<int>(number / all);
  if (row >= of.rows) return;
  const auto part = static_cast<int>(number % all);
  const bool is_q = part < of.heads;
  const bool is_k = !is_q && part < of.heads + of.kv_heads;
  const int head = is_q ? part : is_k ? part - of.heads : part - of.heads - of.kv_heads;
  const float* const from = of.qkv.raw() + number * of.dim;
  const float* bias = is_q ? of.q_bias.raw() : is_k ? of.k_bias.raw() : of.v_bias.raw();
  if (bias != nullptr) bias += head * of.dim;
  const float* const norm = is_q ? of.q_norm.raw() : is_k ? of.k_norm.raw() : nullptr;
  float* const to = (is_q   ? of.q.raw()
                     : is_k ? of.k.raw()
                            : of.v.raw()) +
                    (static_cast<std::size_t>(row) * (is_q ? of.heads : of.kv_heads) + head) * of.dim;
  float scale = 1;
  if (norm != nullptr) {
    float squares = 0;
    for (int i = lane; i < of.dim; i += 32) {
      const float x = from[i] + (bias != nullptr ? bias[i] : 0.0F);
      squares += x * x;
    }
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
    scale = rsqrtf(squares / static_cast<float>(of.dim) + of.epsilon);
  }
  const auto value = [&](int i) {
    const float x = from[i] + (bias != nullptr ? bias[i] : 0.0F);
    return norm != nullptr ? x * scale * norm[i] : x;
  };
  const int turned = is_q || is_k ? of.rotated : 0;
  const float* const cos_sin = of.cos_sin.raw() + static_cast<std::size_t>(row) * of.rotated;
  for (int i = lane; i < turned / 2; i += 32) {
    const int a = of.neox ? i : 2 * i;
    const int b = of.neox ? i + turned / 2 : 2 * i + 1;
    const float x = value(a);
    const float y = value(b);
    const float cosine = cos_sin[2 * i];
    const float sine = cos_sin[2 * i + 1];
    to[a] = x * cosine - y * sine;
    to[b] = x * sine + y * cosine;
  }
  for (int i = turned + lane; i < of.dim; i += 32) to[i] = value(i);
}

__global__ void gate_kernel(const __grid_constant__ GateOp of) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(of.rows) * of.width) return;
  const float* const row = of.gate_up.raw() + i / of.width * 2 * of.width;
  const float x = row[i % of.width];
  of.out.raw()[i] = bits_of(x / (1 + expf(-x)) * row[of.width + i % of.width]);
}

__global__ void take_rows_kernel(const __grid_constant__ TakeRowsOp of) {
  const std::size_t from = static_cast<std::size_t>(of.which.raw()[blockIdx.x]) * of.width;
  const std::size_t to = static_cast<std::size_t>(blockIdx.x) * of.width;
  for (int i = static_cast<int>(threadIdx.x); i < of.width; i += kThreads) {
    of.out.raw()[to + i] = of.from.raw()[from + i];
  }
}

__global__ void narrow_kernel(const __grid_constant__ NarrowOp of) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < of.count) of.out.raw()[i] = bits_of(of.from.raw()[i]);
}

__global__ void write_kernel(const __grid_constant__ WriteOp of) {
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < of.count) *of.writes.raw()[i].to = of.writes.raw()[i].value;
}

template <class Op>
void launch(Stream& stream, void (*kernel)(Op), const Op& op, std::size_t blocks) {
  if (blocks == 0) return;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream.raw())>>>(op);
  check_cuda(cudaGetLastError(), "launching a kernel");
}

std::size_t blocks_of(std::size_t threads) {
  return (threads + kThreads - 1) / kThreads;
}
std::size_t size(int value) {
  return static_cast<std::size_t>(value);
}

}  // namespace

void embed(Stream& stream, const EmbedOp& op) {
  launch(stream, embed_kernel, op, size(op.rows));
}
void normalise(Stream& stream, const NormaliseOp& op) {
  launch(stream, normalise_kernel, op, size(op.rows));
}
void split_qkv(Stream& stream, const QkvOp& op) {
  launch(stream, split_qkv_kernel, op, blocks_of(size(op.rows) * size(op.heads + 2 * op.kv_heads) * 32));
}
void gate(Stream& stream, const GateOp& op) {
  launch(stream, gate_kernel, op, blocks_of(size(op.rows) * size(op.width)));
}
void take_rows(Stream& stream, const TakeRowsOp& op) {
  launch(stream, take_rows_kernel, op, size(op.rows));
}
void narrow(Stream& stream, const NarrowOp& op) {
  launch(stream, narrow_kernel, op, blocks_of(op.count));
}
void write(Stream& stream, const WriteOp& op) {
  launch(stream, write_kernel, op, blocks_of(size(op.count)));
}

}  // namespace glimpse::kernels::cuda
