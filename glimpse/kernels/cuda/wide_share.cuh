// How the kernels of wide_rows.h divide a matrix. It is a row of units, so many outputs by so many inputs, output tile
// by output tile, and every block takes an equal share of them. A tile that several blocks share gets partial sums from
// each; when a block is through with its units, it adds up its own piece of the tile, in the order of the blocks. A
// part says itself that it is there: its place holds kNothing before and after.
#pragma once

#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/wide_end.cuh"

namespace glimpse::kernels::cuda {

/// The most warpgroups that multiply in a block, 64 outputs each.
inline constexpr int kMostWideWorkers = 4;

/// The first unit of a block.
__device__ inline int first_of(const WideArguments& of, int block) {
  return static_cast<int>(static_cast<std::int64_t>(of.units) * block / gridDim.x);
}
/// Whose share a unit is.
__device__ inline int block_of(const WideArguments& of, int unit) {
  return static_cast<int>(((static_cast<std::int64_t>(unit) + 1) * gridDim.x - 1) / of.units);
}

/// Sums of kRows rows in the threads of kWorkers warpgroups, as products leave them.
template <int kRows, int kWorkers>
class WideSums {
 public:
  static constexpr int kOutputs = kWorkers * 64, kThreads = kWorkers * 128;
  static constexpr int kEights = kRows / 8;

  /// `scales`: room for those of rows. Threads meet where there are some.
  __device__ WideSums(const WideArguments& of, float* scales) : of_(of), ending_(of, scales) {
    ending_.template find_scales<kRows * 32 / kThreads>(static_cast<int>(threadIdx.x) / 32, kThreads / 32, 1, kThreads);
  }

  /// Of units [begin, end) of a tile.
  __device__ void take(int tile, int begin, int end, const float (&sums)[kRows / 2]) {
    // What adds takes many registers, and is in finish() alone: a block has one whole tile at most then.
    if (begin == tile * of_.chunks && end == (tile + 1) * of_.chunks && of_.op.end != FewRowsOp::End::add) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) ending_.write(sixteen_of(tile), i, sums + i * 4);
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

  static __device__ int sixteen_of(int tile) {
    return tile * kOutputs + static_cast<int>(threadIdx.x) / 32 * 16;
  }

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
      before = ending_.residual_of(sixteen_of(tile), i);
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
        ending_.end(sixteen_of(tile), i, sums, before);
        if (next < kEights) before = ending_.residual_of(sixteen_of(tile), next);
#pragma unroll
        for (float& sum : sums) sum = 0;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) x[k] = then[k];
      i = next;
      block = next_block;
    }
  }

  const WideArguments& of_;
  WideEnd<kRows, kRows <= kMostNormedPackedRows> ending_;
  int begun_ = -1, ended_ = -1;  ///< tiles that this block shares: of which it has the first unit, and has not
};

}  // namespace glimpse::kernels::cuda
