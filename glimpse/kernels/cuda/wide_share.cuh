// How the kernels of wide_rows.h divide a matrix. It is a row of units, so many outputs by so many inputs, output tile
// by output tile, and every block takes an equal share of them. A tile that several blocks share gets partial sums from
// each; when a block is through with its units, it adds up its own piece of the tile, in the order of the blocks. A
// part says itself that it is there: its place holds kNothing before and after.
#pragma once

#include "glimpse/kernels/cuda/row_scales.cuh"
#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/wgmma.cuh"
#include "glimpse/kernels/cuda/wide_rows.h"

namespace glimpse::kernels::cuda {

/// The most warpgroups that multiply in a block, 64 outputs each.
inline constexpr int kMostWideWorkers = 4;

struct WideArguments {
  const std::byte* weight;
  const std::byte* in;
  FewRowsOp op;
  float* partials;
  int outputs, inputs, rows;
  int chunks, units;  ///< units of a tile, and of all
};

/// Hands of the stages of units, from those who bring to those who multiply, and back.
template <int kStages>
struct WideTurns {
  std::uint64_t full[kStages], empty[kStages];
};

/// The first unit of a block.
__device__ inline int first_of(const WideArguments& of, int block) {
  return static_cast<int>(static_cast<std::int64_t>(of.units) * block / gridDim.x);
}
/// Whose share a unit is.
__device__ inline int block_of(const WideArguments& of, int unit) {
  return static_cast<int>(((static_cast<std::int64_t>(unit) + 1) * gridDim.x - 1) / of.units);
}

/// Sums of kRows rows in the threads of kWorkers warpgroups, as products leave them: a thread has two outputs that are
/// eight apart, for two neighbouring rows of each eight.
template <int kRows, int kWorkers>
class WideSums {
 public:
  static constexpr int kOutputs = kWorkers * 64, kThreads = kWorkers * 128;
  static constexpr int kEights = kRows / 8;
  static constexpr bool kNorms = kRows <= kMostNormedWideRows;

  /// `scales`: room for those of rows. Threads meet where there are some.
  __device__ WideSums(const WideArguments& of, float* scales) : of_(of), scales_(scales) {
    if constexpr (kNorms) {
      if (!of.op.squares) return;
      row_scales<kRows * 32 / kThreads>(of.op, kThreads / 32, scales);
      meet(1, kThreads);
    }
  }

  /// Of units [begin, end) of a tile.
  __device__ void take(int tile, int begin, int end, const float (&sums)[kRows / 2]) {
    // What adds takes many registers, and is in finish() alone: a block has one whole tile at most then.
    if (begin == tile * of_.chunks && end == (tile + 1) * of_.chunks && of_.op.end != FewRowsOp::End::add) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) write_eight(tile, i, sums + i * 4);
    } else {
      leave(tile, sums);
    }
  }
  /// Behind the last take(): adds up this block's pieces of the tiles that it shares. All blocks of the launch run by
  /// then, for the next launch begins when they do.
  __device__ void finish() const {
#pragma unroll 1
    for (const int tile : {ended_, begun_}) {
      if (tile >= 0) add_up(tile);
    }
  }

 private:
  static constexpr int kAtOnce = 4;  ///< parts that a thread waits for

  /// A block's part of a tile, which finish() adds up.
  __device__ void leave(int tile, const float (&sums)[kRows / 2]) {
    const bool begins = first_of(of_, static_cast<int>(blockIdx.x)) <= tile * of_.chunks;
    float4* const own = part(static_cast<int>(blockIdx.x), begins) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float* const of = sums + i * 4;
      __stcg(own + i * kThreads, make_float4(told(of[0]), told(of[1]), told(of[2]), told(of[3])));
    }
    (begins ? begun_ : ended_) = tile;
  }

  __device__ float4* part(int block, bool begins) const {
    return reinterpret_cast<float4*>(of_.partials) +
           (static_cast<std::size_t>(block) * 2 + (begins ? 1 : 0)) * (kMostWideRows / 8 * kMostWideWorkers * 128);
  }
  static __device__ bool all_there(const float4 (&parts)[kAtOnce]) {
    bool all = true;
#pragma unroll
    for (const float4& x : parts) all &= is_there(x);
    return all;
  }

  /// The blocks that share a tile take turns in its pieces, eight rows of a warp each. A thread asks for the next parts
  /// before it waits for some.
  __device__ void add_up(int tile) const {
    const int first = tile * of_.chunks;
    const int begin = block_of(of_, first), blocks = block_of(of_, first + of_.chunks - 1) - begin + 1;
    const int warp = static_cast<int>(threadIdx.x) / 32, step = kThreads / 32 % blocks;
    int turn = (warp + blocks - (static_cast<int>(blockIdx.x) - begin)) % blocks;  // 0: this block's
    float4* const begun = part(begin, first_of(of_, begin) <= first) + threadIdx.x;
    float4* const others = part(begin, false) + threadIdx.x;
    const std::size_t apart = part(1, false) - part(0, false);
    const auto place = [&](int i, int block) {
      return (block == 0 ? begun : others + static_cast<std::size_t>(block) * apart) + i * kThreads;
    };
    const auto ask = [&](int i, int block, float4(&x)[kAtOnce]) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) x[k] = block + k < blocks ? seen(place(i, block + k)) : float4{};
    };
    const auto next_of = [&](int i) {
      do {
        ++i;
        turn += step;
        if (turn >= blocks) turn -= blocks;
      } while (i < kEights && turn != 0);
      return i;
    };
    float sums[4] = {};
    float4 x[kAtOnce], before = {};
    int i = turn == 0 ? 0 : next_of(0), block = 0;
    if (i < kEights) {
      before = residual_of(tile, i);
      ask(i, block, x);
    }
#pragma unroll 1
    while (i < kEights) {
      const bool ends = block + kAtOnce >= blocks;
      const int next = ends ? next_of(i) : i, next_block = ends ? 0 : block + kAtOnce;
      float4 then[kAtOnce];
      if (next < kEights) ask(next, next_block, then);
      while (!all_there(x)) ask(i, block, x);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (block + k >= blocks) continue;
        sums[0] += x[k].x;
        sums[1] += x[k].y;
        sums[2] += x[k].z;
        sums[3] += x[k].w;
        const float nothing = __uint_as_float(kNothing);
        __stcg(place(i, block + k), make_float4(nothing, nothing, nothing, nothing));
      }
      if (ends) {
        if (kNorms && of_.op.end == FewRowsOp::End::add) {
          add_eight(tile, i, sums, before);
        } else {
          write_eight(tile, i, sums);
        }
        if (next < kEights) before = residual_of(tile, next);
#pragma unroll
        for (float& sum : sums) sum = 0;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) x[k] = then[k];
      i = next;
      block = next_block;
    }
  }

  /// The row and the first output of a thread's i-th pair of sums of eight rows; the second is eight further on.
  __device__ int row_of(int eight, int i) const {
    return eight * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i;
  }
  static __device__ int sixteen_of(int tile) {
    return tile * kOutputs + static_cast<int>(threadIdx.x) / 32 * 16;
  }
  /// What eight rows' sums are added to, in their order; zeros where they are added to nothing.
  __device__ float4 residual_of(int tile, int eight) const {
    float before[4] = {};
    const int sixteen = sixteen_of(tile), output = sixteen + static_cast<int>(threadIdx.x) % 32 / 4;
    if (kNorms && of_.op.end == FewRowsOp::End::add && sixteen < of_.outputs) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row_of(eight, i) >= of_.rows) continue;
        const float* const at = of_.op.out.raw() + static_cast<std::size_t>(row_of(eight, i)) * of_.outputs + output;
        before[i] = __ldcg(at);
        before[2 + i] = __ldcg(at + 8);
      }
    }
    return make_float4(before[0], before[1], before[2], before[3]);
  }

  __device__ float scale_of(int row) const {
    return kNorms && of_.op.squares ? scales_[row] : 1.0F;
  }
  __device__ void write_eight(int tile, int eight, const float* sums) const {
    const FewRowsOp& op = of_.op;
    const int sixteen = sixteen_of(tile), output = sixteen + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_of(eight, i);
      if (row >= of_.rows) continue;
      const float scale = scale_of(row), first = sums[i] * scale, second = sums[2 + i] * scale;
      if (op.end == FewRowsOp::End::store) {
        float* const to = op.out.raw() + static_cast<std::size_t>(row) * op.stride + output;
        if (output < of_.outputs) to[0] = first;
        if (output + 8 < of_.outputs) to[8] = second;
      } else if (sixteen < of_.outputs) {
        const float gate = first / (1 + expf(-first));
        op.narrow.raw()[static_cast<std::size_t>(row) * (of_.outputs / 2) + sixteen / 2 + output - sixteen] =
            __bfloat16_as_ushort(__float2bfloat16_rn(gate * second));
      }
    }
  }
  /// `residual`: residual_of() it.
  __device__ void add_eight(int tile, int eight, const float* sums, const float4& residual) const {
    const FewRowsOp& op = of_.op;
    const int lane = static_cast<int>(threadIdx.x) % 32, sixteen = sixteen_of(tile), output = sixteen + lane / 4;
    if (sixteen >= of_.outputs) return;  // the whole warp
    const float before[4] = {residual.x, residual.y, residual.z, residual.w};
    const float norms[2] = {op.norm.raw()[output], op.norm.raw()[output + 8]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = row_of(eight, i);
      const bool there = row < of_.rows;
      const float scale = there ? scale_of(row) : 0;
      const float low = before[i] + sums[i] * scale, high = before[2 + i] + sums[2 + i] * scale;
      float square = low * low + high * high;
      if (there) {
        const std::size_t at = static_cast<std::size_t>(row) * of_.outputs + output;
        op.out.raw()[at] = low;
        op.out.raw()[at + 8] = high;
        op.narrow.raw()[at] = __bfloat16_as_ushort(__float2bfloat16_rn(low * norms[0]));
        op.narrow.raw()[at + 8] = __bfloat16_as_ushort(__float2bfloat16_rn(high * norms[1]));
      }
#pragma unroll
      for (int step = 4; step < 32; step *= 2) square += __shfl_xor_sync(~0U, square, step);
      if (there && lane < 4) {
        op.squares_left.raw()[static_cast<std::size_t>(row) * (of_.outputs / kPackedRows) + sixteen / kPackedRows] =
            square;
      }
    }
  }

  const WideArguments& of_;
  float* scales_;
  int begun_ = -1, ended_ = -1;  ///< tiles that this block shares: of which it has the first unit, and has not
};

}  // namespace glimpse::kernels::cuda
