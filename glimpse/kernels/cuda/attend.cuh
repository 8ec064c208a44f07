// Attention over everything, windows and sets in one launch. A warp takes tiles of kKeys slots: scores of all query
// heads of the group by tensor cores, softmax against a running maximum, and the weighted values; its warps' results
// meet in shared memory at the end of a segment.
#pragma once

#include "glimpse/kernels/cuda/attend_source.cuh"
#include "glimpse/kernels/cuda/queries.cuh"

namespace glimpse::kernels::cuda {

/// Sums over eight query heads of one warp: the maximum of a row's scores (times log2(e)), and this thread's part of
/// the sum of its weights.
struct Softmax {
  float largest = -INFINITY;
  float sum = 0;
};

template <int kDim, int kWarps>
struct Merge {
  static constexpr int kColumns = kDim % 64 == 0 ? 64 : kDim / 2;
  static constexpr int kRow = kColumns + 8;
  float sums[kWarps][8][kRow];
  float2 softmax[kWarps][kTileQueries];  ///< maximum, sum of weights
};

template <class T, int kDim, int kTiles, int kKeys, int kWarps>
struct AttendShape {
  using KvFeed = Feed<kDim, kKeys, 2>;
  using OwnQueries = Queries<T, kDim, kTiles, kWarps * 32>;
  using OwnMerge = Merge<kDim, kWarps>;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kFixed =
      OwnQueries::kBytes + static_cast<int>(sizeof(OwnMerge) + sizeof(Share)) + kWarps * 8 * 4 + 32;
  static constexpr int kStage = KvFeed::kStageBytes * kWarps;
};

/// A tile's scores of eight query heads become weights; sums so far are scaled to the new maximum.
template <class T, int kDim, int kKeys>
__device__ inline void weigh(float (&scores)[kKeys / 8][4], std::uint32_t mask, float scale, Softmax& softmax,
                             float (&sums)[kDim / 8][4], std::uint32_t (&weights)[kKeys / 16][4]) {
  const int first = static_cast<int>(threadIdx.x) % 4 * 2;
  float largest = softmax.largest;
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float score = (scores[n][e] + scores[n][e + 2]) * scale;
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
    const float x = exp2_of(scores[n][0] - base);
    const float y = exp2_of(scores[n][1] - base);
    softmax.sum += x + y;
    weights[n / 2][n % 2 * 2] = split<T>(x, y, weights[n / 2][n % 2 * 2 + 1]);
  }
}

/// The partial results of a segment's work become its output, in the order of its ranges. `room`: kRoom floats of
/// shared memory. The block synchronises.
template <int kDim, int kThreads, int kRoom>
__device__ inline void combine(const AttendArguments& of, const Segment& s, float* room) {
  constexpr int kAhead = 10;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int ranges = static_cast<int>(s.ranges);
  const auto from = [&](int i) { return of.partials.values + partial_of(s, i) * partial_values(kDim); };
  // A few threads for each four values of the output, each with its own ranges; then their sums in order.
  const int values = s.queries * (kDim / 4);
  const int shares = max(1, kThreads / values);
  auto* const totals = reinterpret_cast<LogSum*>(room);  // [16]
  auto* const sums = reinterpret_cast<float4*>(room + 2 * kTileQueries);
  float* const weights = room + 2 * kTileQueries + kThreads * 4;
  const int most = (kRoom - 2 * kTileQueries - kThreads * 4) / s.queries;

  const int own = static_cast<int>(threadIdx.x) % values;
  const int share = static_cast<int>(threadIdx.x) / values;
  float4 ahead[kAhead];  // asked for while the weights are worked out
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int range = share + i * shares;
    if (range < ranges && share < shares) ahead[i] = __ldcg(reinterpret_cast<const float4*>(from(range)) + own);
  }
  for (int query = warp; query < s.queries; query += kThreads / 32) {
    LogSum total;
    for (int i = lane; i < ranges; i += 32) {
      total.add({__ldcg(from(i) + kTileQueries * kDim + query), __ldcg(from(i) + kTileQueries * (kDim + 1) + query)});
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total.add_from(~0U, step);
    if (lane == 0) {
      totals[query] = total;
      if (of.lse != nullptr) of.lse[s.first_query + query] = total.value();
    }
  }
  __syncthreads();
  for (int start = 0; start < values; start += kThreads) {
    const int value = start + own;
    float4 out = make_float4(0, 0, 0, 0);
    for (int first = 0; first < ranges; first += most) {
      const int count = min(most, ranges - first);
      for (int i = static_cast<int>(threadIdx.x); i < count * s.queries; i += kThreads) {
        const LogSum total = totals[i % s.queries];
        const float largest = __ldcg(from(first + i / s.queries) + kTileQueries * kDim + i % s.queries);
        weights[i] = total.sum > 0 ? exp2_of(largest - or_zero(total.largest)) / total.sum : 0;
      }
      __syncthreads();
      const int query = value / (kDim / 4);
      const auto add = [&](int range, const float4& x) {
        const float weight = weights[(range - first) * s.queries + query];
        out.x += weight * x.x;
        out.y += weight * x.y;
        out.z += weight * x.z;
        out.w += weight * x.w;
      };
      if (value < values && share < shares) {
        int range = first + share;
        if (start == 0 && first == 0) {
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            if (range < count) add(range, ahead[i]);
            range += shares;
          }
        }
#pragma unroll 4
        for (; range < first + count; range += shares) {
          add(range, __ldcg(reinterpret_cast<const float4*>(from(range)) + value));
        }
      }
      __syncthreads();
    }
    if (shares > 1) {
      if (share < shares) sums[share * values + own] = out;
      __syncthreads();
      if (share != 0) continue;
      for (int other = 1; other < shares; ++other) {
        const float4 x = sums[other * values + own];
        out.x += x.x;
        out.y += x.y;
        out.z += x.z;
        out.w += x.w;
      }
    }
    if (value < values && share == 0) {
      reinterpret_cast<float4*>(of.out + static_cast<std::size_t>(s.first_query) * kDim)[value] = out;
    }
  }
}

template <class T, int kDim, int kTiles, int kKeys, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 1) attend_kernel(const __grid_constant__ AttendArguments of) {
  using Shape = AttendShape<T, kDim, kTiles, kKeys, kWarps>;
  using KvFeed = typename Shape::KvFeed;
  using Layout = typename KvFeed::Layout;
  constexpr bool kKeepQueries = kTiles == 1 && kDim <= 128;
  extern __shared__ uint4 memory[];
  char* at = reinterpret_cast<char*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  char* const ring = at + warp * of.stages * KvFeed::kStageBytes;
  at += of.stages * Shape::kStage;
  typename Shape::OwnQueries queries(reinterpret_cast<T*>(at));
  at += Shape::OwnQueries::kBytes;
  auto& merge = *reinterpret_cast<typename Shape::OwnMerge*>(at);
  at += sizeof merge;
  auto& share = *reinterpret_cast<Share*>(at);
  at += sizeof share;
  auto* masks = reinterpret_cast<std::uint32_t*>(at) + warp * 8;

  warm(of.reads, static_cast<std::size_t>(of.cache.rows) * of.cache.kv_heads * sizeof(Read));
  begin_kernel(of.cache);
  const AttendSource<kKeys> source{of};
  Sharing<AttendSource<kKeys>> sharing(source, share, of.partials.taken);
  KvFeed feed(shared_address(ring), masks, of.stages, kWarps);
  const int row_of_key = lane % 8 + lane / 16 * 8;       // of keys: matrices (keys 0-7 | 8-15) of two pieces each
  const int row_of_value = lane % 8 + lane / 8 % 2 * 8;  // of values: two halves of the keys, then the next piece

  while (sharing.next()) {
    for (int from = 0; from < sharing.count(); from += kBatch) {
      const int count = min(kBatch, sharing.count() - from);
      sharing.list(from);
      queries.ask(of.q, share.segments[0]);
      feed.start(share.segments, count);
      queries.store();
      for (int n = 0; n < count; ++n) {
        const Segment& s = share.segments[n];
        __syncthreads();  // the queries are in place
        std::uint32_t kept[kKeepQueries ? kDim / 16 : 1][4];
        if constexpr (kKeepQueries) {
#pragma unroll
          for (int k = 0; k < kDim / 16; ++k) queries.load(kept[k], 0, k);
        }
        float sums[kTiles][kDim / 8][4] = {};
        Softmax softmax[kTiles];

        for (int tile = s.begin + warp; tile < s.end; tile += kWarps) {
          std::uint32_t mask = 0;
          const std::uint32_t keys = feed.take(mask);
          if (mask != 0) {
            float scores[kTiles][kKeys / 8][4] = {};
#pragma unroll
            for (int k = 0; k < kDim / 16; ++k) {
              std::uint32_t b[kKeys / 16][4];
#pragma unroll
              for (int h = 0; h < kKeys / 16; ++h) {
                load_matrices(b[h], keys + Layout::offset(h * 16 + row_of_key, k * 2 + lane / 8 % 2));
              }
#pragma unroll
              for (int m = 0; m < kTiles; ++m) {
                std::uint32_t a[4];
                if constexpr (kKeepQueries) {
#pragma unroll
                  for (int e = 0; e < 4; ++e) a[e] = kept[k][e];
                } else {
                  queries.load(a, m, k);
                }
#pragma unroll
                for (int h = 0; h < kKeys / 16; ++h) {
                  multiply<T>(scores[m][h * 2], a, b[h][0], b[h][1]);
                  multiply<T>(scores[m][h * 2 + 1], a, b[h][2], b[h][3]);
                }
              }
            }
            std::uint32_t weights[kTiles][kKeys / 16][4];
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
              weigh<T, kDim, kKeys>(scores[m], mask, of.scale, softmax[m], sums[m], weights[m]);
            }
            const std::uint32_t values = keys + KvFeed::kPlaneBytes;
#pragma unroll
            for (int h = 0; h < kKeys / 16; ++h) {
#pragma unroll
              for (int j = 0; j < kDim / 16; ++j) {
                std::uint32_t b[4];
                load_matrices_transposed(b, values + Layout::offset(h * 16 + row_of_value, j * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < kTiles; ++m) {
                  multiply<T>(sums[m][j * 2], weights[m][h], b[0], b[1]);
                  multiply<T>(sums[m][j * 2 + 1], weights[m][h], b[2], b[3]);
                }
              }
            }
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
        constexpr int kColumns = Shape::OwnMerge::kColumns;
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const int rows = min(8, s.queries - m * 8);
#pragma unroll
          for (int part = 0; part < kDim / kColumns; ++part) {
            if (rows <= 0) break;
#pragma unroll
            for (int j = 0; j < kColumns / 8; ++j) {
              const float(&x)[4] = sums[m][part * (kColumns / 8) + j];
              *reinterpret_cast<float2*>(&merge.sums[warp][lane / 4][j * 8 + lane % 4 * 2]) =
                  make_float2(x[0] + x[2], x[1] + x[3]);
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
                out.x += weight * merge.sums[w][row][column];
                out.y += weight * merge.sums[w][row][column + 1];
              }
              const int query = m * 8 + row;
              const int d = part * kColumns + column;
              if (s.ranges == 1) {
                const std::size_t to = static_cast<std::size_t>(s.first_query + query);
                const float scale = sum > 0 ? 1 / sum : 0;
                *reinterpret_cast<float2*>(of.out + to * kDim + d) = make_float2(out.x * scale, out.y * scale);
                if (d == 0 && of.lse != nullptr) of.lse[to] = (largest + log2f(sum)) * kLogOf2;
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
        if (n + 1 < count) queries.store();
        if (s.ranges > 1 && arrive_last(s, of.partials, share) && threadIdx.x == 0)
          share.mine[s.begin == 0 ? 1 : 0] = s;
      }
    }
    // Last, so that nobody waits for it: a range shares at most its first and its last segment.
    for (int i = 0; i < 2; ++i) {
      __syncthreads();
      if (share.mine[i].ranges > 1) {
        combine<kDim, Shape::kThreads, static_cast<int>(sizeof merge.sums / sizeof(float))>(of, share.mine[i],
                                                                                            &merge.sums[0][0][0]);
      }
    }
  }
}

}  // namespace glimpse::kernels::cuda
