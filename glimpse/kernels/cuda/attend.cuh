// Attention over everything, windows and sets in one launch. A warp takes tiles of kKeys slots: scores of all query
// heads of the group by tensor cores, softmax against a running maximum, and the weighted values; its warps' results
// meet in shared memory at the end of a segment.
#pragma once

#include "glimpse/kernels/cuda/attend_combine.cuh"
#include "glimpse/kernels/cuda/attend_source.cuh"
#include "glimpse/kernels/cuda/bytes.cuh"
#include "glimpse/kernels/cuda/queries.cuh"

namespace glimpse::kernels::cuda {

/// Sums over eight query heads of one warp: the maximum of a row's scores (times log2(e)), and this thread's part of
/// the sum of its weights.
struct Softmax {
  float largest = -INFINITY;
  float sum = 0;
};

/// Blocks that a processor has at a time.
constexpr int attend_blocks(int dim, int warps) {
  return dim <= kMostSharedDim && warps <= 4 ? kBlocksOfProcessor : 1;
}

template <int kDim, int kWarps>
struct Merge {
  static constexpr int kColumns = attend_blocks(kDim, kWarps) > 1 && kDim == 128 ? 32 : kDim % 64 == 0 ? 64 : kDim / 2;
  static constexpr int kRow = kColumns + 8;
  float sums[kWarps][8][kRow];
  float2 softmax[kWarps][kTileQueries];  ///< maximum, sum of weights
};

template <class T, int kDim, int kTiles, int kKeys, int kWarps>
struct AttendShape {
  using KvFeed = Feed<T, kDim, kKeys, 2>;
  using OwnQueries = Queries<T, kDim, kTiles, kWarps * 32>;
  using OwnMerge = Merge<kDim, kWarps>;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kFixed =
      OwnQueries::kBytes + static_cast<int>(sizeof(OwnMerge) + sizeof(Share)) + kWarps * 8 * 4 + 32;
  static constexpr int kStage = KvFeed::kStageBytes * kWarps;
};

/// A tile's scores of eight query heads become weights; sums so far are scaled to the new maximum. `scales`: where
/// those of bytes lie.
template <class T, int kDim, int kKeys>
__device__ inline void weigh(float (&scores)[kKeys / 8][4], std::uint32_t mask, float scale, std::uint32_t scales,
                             Softmax& softmax, float (&sums)[kDim / 8][4], std::uint32_t (&weights)[kKeys / 16][4]) {
  const KeyScales<T, kKeys> of_keys(scales), of_values(scales + kKeys * 4);
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  float largest = softmax.largest;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float score = (scores[n][e] + scores[n][e + 2]) * scale;
      if constexpr (kScaled<T>) score *= of_keys.at(n, e);
      scores[n][e] = (mask >> (n * 8 + first + e) & 1U) != 0 ? score : -INFINITY;
      largest = fmaxf(largest, scores[n][e]);
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
  const float base = or_zero(largest);
  const float shrink = exp2_of(softmax.largest - base);
  if (__any_sync(~0U, largest != softmax.largest)) {
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[j][e] *= shrink;
    }
    softmax.sum *= shrink;
    softmax.largest = largest;
  }
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
    float x = exp2_of(scores[n][0] - base);
    float y = exp2_of(scores[n][1] - base);
    softmax.sum += x + y;
    if constexpr (kScaled<T>) x *= of_values.at(n, 0) * kWeightScale, y *= of_values.at(n, 1) * kWeightScale;
    weights[n / 2][n % 2 * 2] = split<MultipliedAs<T>>(x, y, weights[n / 2][n % 2 * 2 + 1]);
  }
}

/// Scores of a tile's keys, at `keys` as its layout has them.
template <class T, int kDim, int kTiles, int kKeys, class OwnQueries>
__device__ inline void score_tile(const OwnQueries& queries, std::uint32_t keys,
                                  float (&scores)[kTiles][kKeys / 8][4]) {
  using Layout = typename Feed<T, kDim, kKeys, 2>::Layout;
  if constexpr (kScaled<T>) {
#pragma unroll
    for (int k = 0; k < kDim / 32; ++k) {
      std::uint32_t words[kKeys / 16][4];
#pragma unroll
      for (int h = 0; h < kKeys / 16; ++h) load_matrices(words[h], Layout::moved(keys, h * 16, k * 2));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t b[kKeys / 8][2];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n) widen_keys(words[n / 2][n % 2 * 2 + half], b[n]);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          std::uint32_t a[4];
          queries.load(a, m, k * 2 + half);
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) multiply<MultipliedAs<T>>(scores[m][n], a, b[n][0], b[n][1]);
        }
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      std::uint32_t b[kKeys / 16][4];
#pragma unroll
      for (int h = 0; h < kKeys / 16; ++h) load_matrices(b[h], Layout::moved(keys, h * 16, k * 2));
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        std::uint32_t a[4];
        queries.load(a, m, k);
#pragma unroll
        for (int h = 0; h < kKeys / 16; ++h) {
          multiply<T>(scores[m][h * 2], a, b[h][0], b[h][1]);
          multiply<T>(scores[m][h * 2 + 1], a, b[h][2], b[h][3]);
        }
      }
    }
  }
}

/// Adds a tile's values, at `values` as its layout has them, by their weights. Of bytes results 2i and 2i + 1 are
/// the even and the odd dimensions of sixteen (result_of).
template <class T, int kDim, int kTiles, int kKeys>
__device__ inline void add_values(std::uint32_t values, const std::uint32_t (&weights)[kTiles][kKeys / 16][4],
                                  float (&sums)[kTiles][kDim / 8][4]) {
  using Layout = typename Feed<T, kDim, kKeys, 2>::Layout;
#pragma unroll
  for (int h = 0; h < kKeys / 16; ++h) {
    if constexpr (kScaled<T>) {
#pragma unroll
      for (int j = 0; j < kDim / 32; ++j) {
        std::uint32_t words[4];
        load_matrices_transposed(words, Layout::moved(values, h * 16, j * 2));
#pragma unroll
        for (int piece = 0; piece < 2; ++piece) {
          std::uint32_t even[2], odd[2];
          widen_values(words[piece * 2], even[0], odd[0]);
          widen_values(words[piece * 2 + 1], even[1], odd[1]);
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            multiply<MultipliedAs<T>>(sums[m][j * 4 + piece * 2], weights[m][h], even[0], even[1]);
            multiply<MultipliedAs<T>>(sums[m][j * 4 + piece * 2 + 1], weights[m][h], odd[0], odd[1]);
          }
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kDim / 16; ++j) {
        std::uint32_t b[4];
        load_matrices_transposed(b, Layout::moved(values, h * 16, j * 2));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          multiply<T>(sums[m][j * 2], weights[m][h], b[0], b[1]);
          multiply<T>(sums[m][j * 2 + 1], weights[m][h], b[2], b[3]);
        }
      }
    }
  }
}

/// Two neighbouring dimensions of this thread's results, and the first of them: result_place().
template <class T, int kDim>
__device__ inline float2 result_of(const float (&sums)[kDim / 8][4], int j) {
  if constexpr (kScaled<T>) {
    const float(&even)[4] = sums[j / 2 * 2];
    const float(&odd)[4] = sums[j / 2 * 2 + 1];
    constexpr float kScale = 1 / kWeightScale;
    return j % 2 == 0 ? make_float2((even[0] + even[2]) * kScale, (odd[0] + odd[2]) * kScale)
                      : make_float2((even[1] + even[3]) * kScale, (odd[1] + odd[3]) * kScale);
  } else {
    return make_float2(sums[j][0] + sums[j][2], sums[j][1] + sums[j][3]);
  }
}
template <class T>
__device__ inline int result_place(int j) {
  const int of_four = static_cast<int>(threadIdx.x) % 4;
  return kScaled<T> ? j / 2 * 16 + of_four * 4 + j % 2 * 2 : j * 8 + of_four * 2;
}

/// Writes a tile's scores of eight query heads each, which weigh() has multiplied by the scale and log2(e) and cleared.
template <int kTiles, int kKeys>
__device__ inline void leave_scores(const AttendArguments& of, const Segment& s, int tile,
                                    const float (&scores)[kTiles][kKeys / 8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const int query = m * 8 + lane / 4;
    if (query >= s.queries) continue;
    float* const to = of.scores + static_cast<std::size_t>(s.first_query + query) * of.stride;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      const int slot = tile * kKeys + n * 8 + lane % 4 * 2;
      const float2 both = make_float2(scores[m][n][0] * kLogOf2, scores[m][n][1] * kLogOf2);
      if (slot + 1 < s.entries && of.stride % 2 == 0) {
        *reinterpret_cast<float2*>(to + slot) = both;
      } else {
        if (slot < s.entries) to[slot] = both.x;
        if (slot + 1 < s.entries) to[slot + 1] = both.y;
      }
    }
  }
}

template <class T, int kDim, int kTiles, int kKeys, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, attend_blocks(kDim, kWarps))
    attend_kernel(const __grid_constant__ AttendArguments of) {
  using Shape = AttendShape<T, kDim, kTiles, kKeys, kWarps>;
  using KvFeed = typename Shape::KvFeed;
  using Layout = typename KvFeed::Layout;
  extern __shared__ __align__(1024) uint4 memory[];
  char* at = reinterpret_cast<char*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  char* const ring = at + warp * of.stages * KvFeed::kStageBytes;
  at += of.stages * Shape::kStage;
  typename Shape::OwnQueries queries(reinterpret_cast<MultipliedAs<T>*>(at));
  at += Shape::OwnQueries::kBytes;
  auto& merge = *reinterpret_cast<typename Shape::OwnMerge*>(at);
  at += sizeof merge;
  auto& share = *reinterpret_cast<Share*>(at);
  at += sizeof share;
  auto* masks = reinterpret_cast<std::uint32_t*>(at) + warp * 8;

  AttendSource<kKeys> source{of};
  Sharing<AttendSource<kKeys>> sharing(source, share, of.partials.taken, of.cache.fresh >= 0,
                                       reinterpret_cast<std::byte*>(memory), of.stages * Shape::kStage);
  KvFeed feed(shared_address(ring), masks, of.stages, kWarps);
  // Of keys: matrices (keys 0-7 | 8-15) of two pieces each; of values: two halves of the keys, then the next piece.
  const std::uint32_t first_key = Layout::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  const std::uint32_t first_value = Layout::offset(lane % 8 + lane / 8 % 2 * 8, lane / 16);

  while (sharing.next()) {
    for (int from = 0; from < sharing.count(); from += kBatch) {
      const int count = min(kBatch, sharing.count() - from);
      sharing.list(from);
      const bool waited = sharing.waited();
      if (waited) queries.ask(of.q, share.segments[0]);
      feed.start(share.segments, count, waited);
      sharing.set_waited();
      if (!waited) queries.ask(of.q, share.segments[0]);
      queries.store();
      for (int n = 0; n < count; ++n) {
        const Segment& s = share.segments[n];
        __syncthreads();  // the queries are in place
        float sums[kTiles][kDim / 8][4] = {};
        Softmax softmax[kTiles];

        for (int tile = s.begin + warp; tile < s.end; tile += kWarps) {
          std::uint32_t mask = 0;
          const std::uint32_t keys = feed.take(mask);
          if (mask != 0 || s.scored != 0) {
            float scores[kTiles][kKeys / 8][4] = {};
            score_tile<T, kDim, kTiles, kKeys>(queries, keys + first_key, scores);
            std::uint32_t weights[kTiles][kKeys / 16][4];
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
              weigh<T, kDim, kKeys>(scores[m], mask, of.scale, keys + KvFeed::kRowsBytes, softmax[m], sums[m],
                                    weights[m]);
            }
            if (s.scored != 0) leave_scores<kTiles, kKeys>(of, s, tile, scores);
            add_values<T, kDim, kTiles, kKeys>(keys + KvFeed::kPlaneBytes + first_value, weights, sums);
          }
          feed.release();
        }

        if (n + 1 < count) queries.ask(of.q, share.segments[n + 1]);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          float sum = softmax[m].sum;
          sum += __shfl_xor_sync(~0U, sum, 1);
          sum += __shfl_xor_sync(~0U, sum, 2);
          if (lane % 4 == 0) merge.softmax[warp][m * 8 + lane / 4] = make_float2(softmax[m].largest, sum);
        }
        float* const partial = of.partials.values + own_partial(s, sharing.range()) * partial_values(kDim);
        const auto merge_warps = [&]<int kColumns, int kRows>() {
          auto* const all = reinterpret_cast<float(*)[kRows][kColumns + 8]>(&merge.sums[0][0][0]);
          static_assert(sizeof merge.sums >= sizeof(float) * kWarps * kRows * (kColumns + 8));
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            const int rows = min(kRows, s.queries - m * 8);
#pragma unroll 1
            for (int part = 0; part < kDim / kColumns; ++part) {
              if (rows <= 0) break;
              if (kRows == 8 || lane / 4 < kRows) {
#pragma unroll
                for (int j = 0; j < kColumns / 8; ++j) {
                  float2 x = make_float2(0, 0);
#pragma unroll
                  for (int of_part = 0; of_part < kDim / kColumns; ++of_part) {
                    if (part == of_part) x = result_of<T, kDim>(sums[m], of_part * (kColumns / 8) + j);
                  }
                  *reinterpret_cast<float2*>(&all[warp][lane / 4][result_place<T>(j)]) = x;
                }
              }
              __syncthreads();
              for (int i = static_cast<int>(threadIdx.x); i < rows * (kColumns / 2); i += Shape::kThreads) {
                const int row = i / (kColumns / 2);
                const int column = i % (kColumns / 2) * 2;
                float largest = -INFINITY;
                for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, merge.softmax[w][m * 8 + row].x);
                float2 out = make_float2(0, 0);
                float sum = 0;
                for (int w = 0; w < kWarps; ++w) {
                  const float2 own = merge.softmax[w][m * 8 + row];
                  const float weight = exp2_of(own.x - or_zero(largest));
                  sum += weight * own.y;
                  out.x += weight * all[w][row][column];
                  out.y += weight * all[w][row][column + 1];
                }
                const int query = m * 8 + row;
                const int d = part * kColumns + column;
                if (s.ranges == 1) {
                  const std::size_t to = static_cast<std::size_t>(s.first_query + query);
                  const float scale = sum > 0 ? 1 / sum : 0;
                  *reinterpret_cast<float2*>(of.out + to * kDim + d) = make_float2(out.x * scale, out.y * scale);
                  if (of.narrow != nullptr) {
                    *reinterpret_cast<std::uint32_t*>(of.narrow + to * kDim + d) =
                        bf16_pair(out.x * scale, out.y * scale);
                  }
                  if (d == 0) {
                    const float lse = (largest + log2f(sum)) * kLogOf2;
                    if (of.lse != nullptr) of.lse[to] = lse;
                    if (s.scored != 0) of.score_lse[to] = lse;
                  }
                } else if (sharing.apart()) {
                  float* const piece = piece_of<kDim>(of, sharing.range(), query, d / kPieceDims);
                  __stcg(reinterpret_cast<float2*>(piece + 4 + d % kPieceDims), make_float2(told(out.x), told(out.y)));
                  if (d % kPieceDims == 0) {
                    __stcg(reinterpret_cast<float4*>(piece), make_float4(told(largest), told(sum), 0, 0));
                  }
                } else {
                  *reinterpret_cast<float2*>(partial + query * kDim + d) = out;
                  if (d == 0) {
                    partial[kTileQueries * kDim + query] = largest;
                    partial[kTileQueries * (kDim + 1) + query] = sum;
                  }
                }
              }
              __syncthreads();
            }
          }
        };
        constexpr int kColumns = Shape::OwnMerge::kColumns;
        if (kTiles == 1 && kDim > kColumns && s.queries <= 4) {
          merge_warps.template operator()<kDim == kColumns ? kColumns : 2 * kColumns, 4>();
        } else {
          merge_warps.template operator()<kColumns, 8>();
        }
        if (n + 1 < count) queries.store();
        if (s.ranges == 1) continue;
        if (sharing.apart()) {
          combine_pieces<kDim, kWarps>(of, s, sharing.range(),
                                       reinterpret_cast<float(*)[kPieceDims + 2]>(&merge.sums[0][0][0]));
        } else if (arrive_last(s, of.partials, share) && threadIdx.x == 0) {
          share.mine[s.begin == 0 ? 1 : 0] = s;
        }
      }
    }
    // Last, so that nobody waits for it: a range shares at most its first and its last segment.
    for (int i = 0; i < 2; ++i) {
      __syncthreads();
      if (share.mine[i].ranges > 1) {
        combine<kDim, Shape::kThreads>(of, share.mine[i], reinterpret_cast<float4*>(&merge.sums[0][0][0]));
      }
    }
  }
}

}  // namespace glimpse::kernels::cuda
