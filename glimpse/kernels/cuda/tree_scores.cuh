// Scores of nodes of a tree (trees.h) for all queries that choose together, on tensor cores, sixteen nodes at a time by
// a warp. A node's values are f16; a query is two f16 numbers for each value, and 2^-22 of it is lost.
#pragma once

#include <cuda_fp16.h>

#include "glimpse/kernels/cuda/mma.cuh"
#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/trees.h"

namespace glimpse::kernels::cuda {

inline constexpr int kNodesAtOnce = 16;  ///< by a warp
inline constexpr int kNodeLanes = 4;     ///< of a node there

struct TreeArguments {
  Cache cache;
  TreeSearchOp op;
};

/// Of a query in shared memory. Rows lie so that eight lanes, four of each of two rows, read other banks.
__host__ __device__ constexpr int query_words(int dim) {
  return dim + 16;
}
__device__ inline float power_of_two(int exponent) {
  return __uint_as_float(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// What a search has in shared memory: its queries, then their lengths, [group, query_words + 2] words.
class NodeScores {
 public:
  __device__ NodeScores(const TreeArguments& of, const TreeSearch& search, std::uint32_t* queries)
      : of_(of), search_(search), queries_(queries) {}

  /// The queries that choose together: each is a row of two f16 numbers for each value, and has a length, scaled. Each
  /// of the block's kStep warps takes some. The block synchronises.
  template <int kStep>
  __device__ void load() {
    const int dim = of_.cache.dim;
    const bool alone = search_.query >= 0;
    const std::size_t head =
        (static_cast<std::size_t>(search_.row) * of_.cache.kv_heads + search_.head) * of_.op.group +
        (alone ? search_.query : 0);
    const float* const from = of_.op.q.raw() + head * dim;
    const int group = alone ? 1 : of_.op.group;
    group_ = search_.mean_query != 0 ? 1 : group;
    lengths_ = reinterpret_cast<float*>(queries_ + group_ * query_words(dim));
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int j = static_cast<int>(threadIdx.x) / 32; j < group_; j += kStep) {
      float2 pairs[kMaxHeadDim / 64];
      float squares = 0;
#pragma unroll
      for (int i = 0; i < kMaxHeadDim / 64; ++i) {
        const int at = (i * 32 + lane) * 2;
        pairs[i] = at < dim ? *reinterpret_cast<const float2*>(from + j * dim + at) : make_float2(0, 0);
        if (group_ < group && at < dim) {
          for (int other = 1; other < group; ++other) {
            const float2 more = *reinterpret_cast<const float2*>(from + other * dim + at);
            pairs[i].x += more.x, pairs[i].y += more.y;
          }
          pairs[i].x /= static_cast<float>(group), pairs[i].y /= static_cast<float>(group);
        }
        squares += pairs[i].x * pairs[i].x + pairs[i].y * pairs[i].y;
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
      const float length = sqrtf(squares);
      // A power of two that brings it to 2^13 to 2^14: then no f16 number overflows, and small ones lose little.
      const bool ordinary = length > 1e-30F && length < 1e30F;
      const int exponent = ordinary ? 13 + 127 - static_cast<int>(__float_as_uint(length) >> 23) : 0;
      const float factor = power_of_two(exponent);
      std::uint32_t* const row = queries_ + j * query_words(dim);
#pragma unroll
      for (int i = 0; i < kMaxHeadDim / 64; ++i) {
        const int pair = i * 32 + lane;
        if (pair >= dim / 2) continue;
        std::uint32_t rest = 0;
        row[pair] = split<__half>(pairs[i].x * factor, pairs[i].y * factor, rest);
        row[dim / 2 + pair] = rest;
      }
      if (lane == 0) {
        lengths_[2 * j] = length * of_.op.scale;
        lengths_[2 * j + 1] = of_.op.scale * power_of_two(-exponent);
      }
    }
    __syncthreads();
  }

  /// The scores of sixteen nodes of the tree (clusters behind branches), by a warp, of which four lanes have two.
  __device__ void score(int low, int high, float (&scores)[2]) const {
    const int dim = of_.cache.dim, lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / kNodeLanes, column = lane % kNodeLanes;
    const auto* const rows = reinterpret_cast<const uint4*>(search_.tree.centroids);
    const uint4* const low_row = rows + static_cast<std::size_t>(low) * (dim / 8) + column;
    const uint4* const high_row = rows + static_cast<std::size_t>(high) * (dim / 8) + column;
    const float radii[2] = {search_.tree.radii[low], search_.tree.radii[high]};
    const bool mean = search_.pooling == Pooling::mean_score;
    scores[0] = scores[1] = mean ? 0.0F : -INFINITY;
    for (int slice = 0; slice < group_; slice += 16) {
      float sums[2][4] = {};
      constexpr int kPieces = 2;  // of eight values, at a time
      for (int first = 0; first < dim / 8 / kNodeLanes; first += kPieces) {
        uint4 pieces[kPieces][2];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const bool there = first + i < dim / 8 / kNodeLanes;
          pieces[i][0] = there ? low_row[(first + i) * kNodeLanes] : make_uint4(0, 0, 0, 0);
          pieces[i][1] = there ? high_row[(first + i) * kNodeLanes] : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          if (first + i >= dim / 8 / kNodeLanes) break;
          const int word = ((first + i) * kNodeLanes + column) * 4;
          add(pieces[i], slice + row, word, sums[0]);
          if (group_ - slice > 8) add(pieces[i], slice + 8 + row, word, sums[1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int query = slice + i / 4 * 8 + column * 2 + i % 2, of = i / 2 % 2;
        if (query >= group_) continue;
        const float value = sums[i / 4][i % 4] * lengths_[2 * query + 1] + radii[of] * lengths_[2 * query];
        scores[of] = mean ? scores[of] + value : fmaxf(scores[of], value);
      }
    }
    for (float& each : scores) {
#pragma unroll
      for (int step = 1; step < kNodeLanes; step *= 2) {
        const float other = __shfl_xor_sync(~0U, each, step);
        each = mean ? each + other : fmaxf(each, other);
      }
      if (mean) each /= static_cast<float>(group_);
    }
  }

 private:
  /// Adds the products of eight values of two nodes a lane, and of those of a query, from `word` of its row on.
  __device__ void add(const uint4 (&pieces)[2], int query, int word, float (&sums)[4]) const {
    uint4 whole = make_uint4(0, 0, 0, 0), rest = whole;
    if (query < group_) {
      const std::uint32_t* const at = queries_ + query * query_words(of_.cache.dim) + word;
      whole = *reinterpret_cast<const uint4*>(at);
      rest = *reinterpret_cast<const uint4*>(at + of_.cache.dim / 2);
    }
    const std::uint32_t first[4] = {pieces[0].x, pieces[1].x, pieces[0].y, pieces[1].y};
    const std::uint32_t second[4] = {pieces[0].z, pieces[1].z, pieces[0].w, pieces[1].w};
    multiply<__half>(sums, first, whole.x, whole.y);
    multiply<__half>(sums, first, rest.x, rest.y);
    multiply<__half>(sums, second, whole.z, whole.w);
    multiply<__half>(sums, second, rest.z, rest.w);
  }

  const TreeArguments& of_;
  const TreeSearch& search_;
  std::uint32_t* queries_;    ///< [group_, query_words]
  float* lengths_ = nullptr;  ///< [group_, 2] scaled, and what brings a product back
  int group_ = 1;             ///< queries
};

}  // namespace glimpse::kernels::cuda
