#include <cuda_bf16.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/kernels/cuda/row_tokens.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMostThreads = 1024;
/// Of split_qkv. A processor takes in a block of attention, which has nearly all registers, when it holds none of
/// these: blocks twice as large lie on fewer processors.
constexpr int kSplitThreads = 512;

__device__ Bf16 bits_of(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}

/// The sum over a block's threads, whole warps of them, the same in each, in a fixed order.
__device__ float block_sum(float own) {
  __shared__ float warps[32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) own += __shfl_xor_sync(~0U, own, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = own;
  __syncthreads();
  float sum = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0.0F;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  return sum;
}

/// A block for each row.
__global__ void embed_kernel(const __grid_constant__ EmbedOp of) {
  begin_launch();
  const std::size_t from = static_cast<std::size_t>(token_of(of.tokens, static_cast<int>(blockIdx.x))) * of.width;
  const std::size_t to = static_cast<std::size_t>(blockIdx.x) * of.width;
  for (int i = static_cast<int>(threadIdx.x); i < of.width; i += kThreads) {
    of.out.raw()[to + i] = __uint_as_float(static_cast<std::uint32_t>(of.table.raw()[from + i]) << 16);
  }
}

/// A block for each row, which it reads once: four values in a turn of a thread.
template <int kTurns>
__global__ void normalise_kernel(const __grid_constant__ NormaliseOp of) {
  const int fours = of.width / 4;
  const std::size_t at = static_cast<std::size_t>(blockIdx.x) * fours;
  float4 weight[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {  // what no launch writes, before this one waits
    const int i = turn * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    weight[turn] = i < fours ? reinterpret_cast<const float4*>(of.weight.raw())[i] : make_float4(0, 0, 0, 0);
  }
  begin_launch();
  float4* const row = reinterpret_cast<float4*>(of.residual.raw()) + at;
  const float4* const delta = of.delta ? reinterpret_cast<const float4*>(of.delta.raw()) + at : nullptr;
  float4 x[kTurns];
  float squares = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    x[turn] = make_float4(0, 0, 0, 0);
    if (i >= fours) continue;
    x[turn] = row[i];
    if (delta != nullptr) {
      const float4 d = delta[i];
      x[turn] = make_float4(x[turn].x + d.x, x[turn].y + d.y, x[turn].z + d.z, x[turn].w + d.w);
      row[i] = x[turn];
    }
    squares += x[turn].x * x[turn].x + x[turn].y * x[turn].y + x[turn].z * x[turn].z + x[turn].w * x[turn].w;
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(of.width) + of.epsilon);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = turn * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
    if (i >= fours) continue;
    const float4 w = weight[turn];
    reinterpret_cast<ushort4*>(of.out.raw())[at + i] =
        make_ushort4(bits_of(x[turn].x * scale * w.x), bits_of(x[turn].y * scale * w.y),
                     bits_of(x[turn].z * scale * w.z), bits_of(x[turn].w * scale * w.w));
  }
}

struct QkvArguments {
  QkvOp op;
  Cache cache;
};

/// Where a head's values go: q as f32, k and v as the cache has them.
struct HeadOut {
  float* floats;
  OwnRow row;

  __device__ void put(int i, float x) const {
    if (floats != nullptr) {
      floats[i] = x;
    } else {
      row.put(i, x);
    }
  }
  /// Of i and i + 1; i is even.
  __device__ void put_both(int i, float x, float y) const {
    if (floats != nullptr) {
      *reinterpret_cast<float2*>(floats + i) = make_float2(x, y);
    } else {
      row.put_both(i, x, y);
    }
  }
};

/// A warp for each head of q, k and v of each row; a thread for each pair of dimensions.
__global__ void __launch_bounds__(kSplitThreads) split_qkv_kernel(const __grid_constant__ QkvArguments arguments) {
  let_next_begin();
  const QkvOp& of = arguments.op;
  const Cache& cache = arguments.cache;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int all = of.heads + 2 * cache.kv_heads;
  const std::size_t number = static_cast<std::size_t>(blockIdx.x) * (kSplitThreads / 32) + threadIdx.x / 32;
  const auto row = static_cast<int>(number / all);
  if (row >= cache.rows) return;
  const auto part = static_cast<int>(number % all);
  const bool is_q = part < of.heads;
  const bool is_k = !is_q && part < of.heads + cache.kv_heads;
  const int head = is_q ? part : is_k ? part - of.heads : part - of.heads - cache.kv_heads;
  const float* const from = of.qkv.raw() + number * cache.dim;
  const float* bias = is_q ? of.q_bias.raw() : is_k ? of.k_bias.raw() : of.v_bias.raw();
  if (bias != nullptr) bias += head * cache.dim;
  const float* const norm = is_q ? of.q_norm.raw() : is_k ? of.k_norm.raw() : nullptr;
  const HeadView& view = view_of(cache, row, is_q ? 0 : head);
  const HeadOut to{is_q ? of.q.raw() + (static_cast<std::size_t>(row) * of.heads + head) * cache.dim : nullptr,
                   OwnRow(cache, is_k ? view.k_plane : view.v_plane, is_q ? 0 : own_row(cache, row, view))};
  wait_for_launch_before();  // until here only tables of the pass were read, which no layer writes
  float scale = 1;
  if (norm != nullptr) {
    float squares = 0;
    for (int i = lane; i < cache.dim; i += 32) {
      const float x = from[i] + (bias != nullptr ? bias[i] : 0.0F);
      squares += x * x;
    }
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
    scale = rsqrtf(squares / static_cast<float>(cache.dim) + of.epsilon);
  }
  const auto value = [&](int i, float x) {
    if (bias != nullptr) x += bias[i];
    return norm != nullptr ? x * scale * norm[i] : x;
  };
  const int turned = is_q || is_k ? of.rotated : 0;
  const float2* const cos_sin =
      reinterpret_cast<const float2*>(of.cos_sin.raw() + static_cast<std::size_t>(row) * of.rotated);
  const bool scaled = !is_q && to.row.scaled();
  constexpr int kPairs = kMaxHeadDim / 64;
  float2 values[kPairs];
  int2 at[kPairs];
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int pair = i * 32 + lane;
    at[i] = make_int2(-1, -1);
    if (pair >= cache.dim / 2) continue;
    const bool turns = pair < turned / 2;
    if (turns && of.neox) {
      const int other = pair + turned / 2;
      const float x = value(pair, from[pair]), y = value(other, from[other]);
      const float2 by = cos_sin[pair];
      values[i] = make_float2(x * by.x - y * by.y, x * by.y + y * by.x);
      at[i] = make_int2(pair, other);
      if (scaled) continue;
      to.put(pair, values[i].x);
      to.put(other, values[i].y);
      continue;
    }
    const float2 both = reinterpret_cast<const float2*>(from)[pair];
    const float x = value(2 * pair, both.x), y = value(2 * pair + 1, both.y);
    const float2 by = turns ? cos_sin[pair] : make_float2(1, 0);
    values[i] = make_float2(turns ? x * by.x - y * by.y : x, turns ? x * by.y + y * by.x : y);
    at[i] = make_int2(2 * pair, 2 * pair + 1);
    if (!scaled) to.put_both(2 * pair, values[i].x, values[i].y);
  }
  if (scaled) to.row.put_scaled(values, at);
}

/// A thread for four values of a row.
__global__ void gate_kernel(const __grid_constant__ GateOp of) {
  begin_launch(true);
  const std::size_t fours = static_cast<std::size_t>(of.width) / 4;
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= static_cast<std::size_t>(of.rows) * fours) return;
  const float4* const row = reinterpret_cast<const float4*>(of.gate_up.raw()) + i / fours * 2 * fours;
  const std::size_t at = i % fours;
  const std::size_t first = of.paired ? at + at / 2 * 2 : at;
  const float4 gates = row[first], ups = row[first + (of.paired ? 2 : fours)];
  const auto gated = [](float x, float up) { return bits_of(x / (1 + expf(-x)) * up); };
  reinterpret_cast<ushort4*>(of.out.raw())[i] =
      make_ushort4(gated(gates.x, ups.x), gated(gates.y, ups.y), gated(gates.z, ups.z), gated(gates.w, ups.w));
}

__global__ void take_rows_kernel(const __grid_constant__ TakeRowsOp of) {
  begin_launch();
  const std::size_t from = static_cast<std::size_t>(of.which.raw()[blockIdx.x]) * of.width;
  const std::size_t to = static_cast<std::size_t>(blockIdx.x) * of.width;
  for (int i = static_cast<int>(threadIdx.x); i < of.width; i += kThreads) {
    of.out.raw()[to + i] = of.from.raw()[from + i];
  }
}

__global__ void narrow_kernel(const __grid_constant__ NarrowOp of) {
  begin_launch();
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= of.count / 4) return;
  const float4 four = reinterpret_cast<const float4*>(of.from.raw())[i];
  reinterpret_cast<ushort4*>(of.out.raw())[i] =
      make_ushort4(bits_of(four.x), bits_of(four.y), bits_of(four.z), bits_of(four.w));
}

__global__ void write_kernel(const __grid_constant__ WriteOp of) {
  wait_for_launch_before();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (i < of.count) *of.writes.raw()[i].to = of.writes.raw()[i].value;
}

/// One block: it reads some rows, and writes them when all of them have been read. Word: what their bytes come in.
template <class Word>
__global__ void __launch_bounds__(kMostThreads) move_rows_kernel(const __grid_constant__ MoveRowsOp of) {
  constexpr int kPieces = 4;
  wait_for_launch_before();
  constexpr std::size_t kBytes = sizeof(Word);
  const int pieces = of.bytes / static_cast<int>(kBytes);
  const std::size_t all = static_cast<std::size_t>(of.count) * pieces;
  const auto place = [&](std::size_t at) { return reinterpret_cast<Word*>(of.memory.raw() + at); };
  // Whole rows at a time.
  const std::size_t step = static_cast<std::size_t>(kMostThreads * kPieces / pieces) * pieces;
  for (std::size_t first = 0; first < all; first += step) {
    Word read[kPieces];
    std::size_t to[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const std::size_t piece = static_cast<std::size_t>(i) * kMostThreads + threadIdx.x;
      to[i] = ~std::size_t{0};
      if (piece >= step || first + piece >= all) continue;
      const RowMove row = of.rows.raw()[(first + piece) / pieces];
      const std::size_t offset = (first + piece) % pieces * kBytes;
      read[i] = *place(row.from + offset);
      to[i] = row.to + offset;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (to[i] != ~std::size_t{0}) *place(to[i]) = read[i];
    }
    __syncthreads();
  }
}

/// A block for a page. All of it is asked for before any of it is written: the way is long.
__global__ void copy_pages_kernel(const __grid_constant__ CopyPagesOp of) {
  wait_for_launch_before();
  const PageCopy page = of.pages.raw()[blockIdx.x];
  const int pieces = of.bytes / 16;
  auto* const k = reinterpret_cast<uint4*>(of.k.raw() + page.at);
  auto* const v = reinterpret_cast<uint4*>(of.v.raw() + page.at);
  auto* const copy = reinterpret_cast<uint4*>(page.copy);
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kThreads) {
    if (of.back) {
      const uint4 of_k = copy[i], of_v = copy[pieces + i];
      k[i] = of_k;
      v[i] = of_v;
    } else {
      copy[i] = k[i];
      copy[pieces + i] = v[i];
    }
  }
}

template <class Op>
void launch_blocks(Stream& stream, void (*kernel)(Op), const Op& op, std::size_t blocks, int threads = kThreads,
                   bool early = true) {
  if (blocks == 0) return;
  launch(kernel, op, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(threads)), 0,
         {launch_limits(stream), static_cast<cudaStream_t>(stream.raw()), early});
}

std::size_t blocks_of(std::size_t threads, int of_block = kThreads) {
  return (threads + size(of_block) - 1) / size(of_block);
}

}  // namespace

void embed(Stream& stream, const EmbedOp& op) {
  launch_blocks(stream, embed_kernel, op, size(op.rows), kThreads, false);
}
void normalise(Stream& stream, const NormaliseOp& op) {
  check(op.width % 4 == 0 && op.width <= 16 * kMostThreads, "a row of up to 16,384 values, in fours");
  const int threads = std::min(kMostThreads, (op.width / 4 + 31) / 32 * 32);
  if (op.width <= 4 * threads) return launch_blocks(stream, normalise_kernel<1>, op, size(op.rows), threads);
  if (op.width <= 8 * threads) return launch_blocks(stream, normalise_kernel<2>, op, size(op.rows), threads);
  launch_blocks(stream, normalise_kernel<4>, op, size(op.rows), threads);
}
void split_qkv(Stream& stream, const QkvOp& op) {
  require_supported(op.cache.format);
  const Cache cache = cache_of(op.cache, op.rows);
  launch_blocks(stream, split_qkv_kernel, QkvArguments{op, cache},
                blocks_of(size(cache.rows) * size(op.heads + 2 * cache.kv_heads) * 32, kSplitThreads), kSplitThreads);
}
void gate(Stream& stream, const GateOp& op) {
  check(op.width % 4 == 0, "a row in fours");
  launch_blocks(stream, gate_kernel, op, blocks_of(size(op.rows) * size(op.width) / 4));
}
void take_rows(Stream& stream, const TakeRowsOp& op) {
  launch_blocks(stream, take_rows_kernel, op, size(op.rows));
}
void narrow(Stream& stream, const NarrowOp& op) {
  check(op.count % 4 == 0, "values in fours");
  launch_blocks(stream, narrow_kernel, op, blocks_of(op.count / 4));
}
void write(Stream& stream, const WriteOp& op) {
  launch_blocks(stream, write_kernel, op, blocks_of(size(op.count)));
}
void move_rows(Stream& stream, const MoveRowsOp& op) {
  const bool wide = op.bytes % 16 == 0;
  check(op.bytes > 0 && op.bytes % 4 == 0 && op.bytes / (wide ? 16 : 4) <= kMostThreads, "rows of whole words");
  if (op.count > 0)
    launch_blocks(stream, wide ? &move_rows_kernel<uint4> : &move_rows_kernel<unsigned>, op, 1, kMostThreads);
}
void copy_pages(Stream& stream, const CopyPagesOp& op) {
  check(op.bytes > 0 && op.bytes % 16 == 0, "pages of whole 16 bytes");
  launch_blocks(stream, copy_pages_kernel, op, size(op.count));
}

}  // namespace glimpse::kernels::cuda
