// Scores of every slot for each query head and their log-sum-exp: K alone is read. A warp takes 32 slots at a time, so
// that it writes whole lines of scores.
#pragma once

#include "glimpse/kernels/cuda/bytes.cuh"
#include "glimpse/kernels/cuda/queries.cuh"
#include "glimpse/kernels/cuda/share.cuh"

namespace glimpse::kernels::cuda {

inline constexpr int kScoreKeys = 32;

struct ScoreSource {
  const ScoreArguments& of;
  std::byte* near = nullptr;  ///< the tables in shared memory: rows, heads

  struct Unit {
    int row, head, seen;
    HeadView view;
  };
  __device__ int units() const { return of.count; }
  __device__ Unit load(int unit) const {
    const RowTables tables = near != nullptr ? RowTables(of.cache, near) : RowTables(of.cache);
    const RowHead at =
        near != nullptr ? reinterpret_cast<const RowHead*>(near + RowTables::bytes(of.cache))[unit] : of.heads[unit];
    Unit u{at.row, at.head, 0, tables.views[tables.sequence[at.row] * of.cache.kv_heads + at.head]};
    u.seen = u.view.slots - tables.behind[u.row] + 1;
    return u;
  }
  __device__ int near_bytes() const { return RowTables::bytes(of.cache) + units() * static_cast<int>(sizeof(RowHead)); }
  __device__ void bring(std::byte* room) {
    bring_table(RowTables::bring(of.cache, room), of.heads, units());
    near = room;
  }
  __device__ void bring_rest(int) const {}
  __device__ void forget() { near = nullptr; }
  __device__ static bool waits(const Unit&) { return false; }
  __device__ void settle(Unit&) const {}
  __device__ int pieces(const Unit&) const { return of.slices; }
  __device__ int least_pieces() const { return of.slices; }
  __device__ Piece piece(const Unit& u, int) const {
    return {static_cast<unsigned>(max((u.seen + kScoreKeys - 1) / kScoreKeys, 1)), kRunWeight};
  }
  __device__ void fill(Segment& s, const Unit& u, int piece) const {
    s.k = u.view.k_plane;
    s.pages = u.view.pages;
    s.positions = u.view.positions;
    s.old = u.view.slots - of.cache.fresh;
    s.entries = s.local = s.sink = u.seen;
    s.sink_tiles = (u.seen + kScoreKeys - 1) / kScoreKeys;
    s.first_query = (u.row * of.cache.kv_heads + u.head) * of.group + piece * of.slice;
    s.queries = min(of.slice, of.group - piece * of.slice);
  }
};

template <class T, int kDim, int kTiles, int kWarps>
struct ScoreShape {
  using KeyFeed = Feed<T, kDim, kScoreKeys, 1>;
  using OwnQueries = Queries<T, kDim, kTiles, kWarps * 32>;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kFixed = OwnQueries::kBytes + kWarps * kTileQueries * static_cast<int>(sizeof(LogSum)) +
                                static_cast<int>(sizeof(Share)) + kWarps * 8 * 4;
  static constexpr int kStage = KeyFeed::kStageBytes * kWarps;
};

/// Scores of a tile's keys, at `keys` as its layout has them, by queries in registers.
template <class T, int kDim, int kTiles>
__device__ inline void score_keys(const std::uint32_t (&queries)[kTiles][kDim / 16][4], std::uint32_t keys,
                                  float (&scores)[kTiles][kScoreKeys / 8][4]) {
  using Layout = typename Feed<T, kDim, kScoreKeys, 1>::Layout;
  using Product = MultipliedAs<T>;
  constexpr int kDims = kScaled<T> ? 32 : 16;  // that two pieces of sixteen bytes hold
#pragma unroll
  for (int k = 0; k < kDim / kDims; ++k) {
#pragma unroll
    for (int h = 0; h < kScoreKeys / 16; ++h) {
      std::uint32_t words[4];
      load_matrices(words, Layout::moved(keys, h * 16, k * 2));
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if constexpr (kScaled<T>) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            std::uint32_t b[2];
            widen_keys(words[n * 2 + half], b);
#pragma unroll
            for (int m = 0; m < kTiles; ++m) {
              multiply<Product>(scores[m][h * 2 + n], queries[m][k * 2 + half], b[0], b[1]);
            }
          }
        } else {
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            multiply<Product>(scores[m][h * 2 + n], queries[m][k], words[n * 2], words[n * 2 + 1]);
          }
        }
      }
    }
  }
}

template <class T, int kDim, int kTiles, int kWarps>
__global__ void __launch_bounds__(kWarps * 32, 1) score_kernel(const __grid_constant__ ScoreArguments of) {
  using Shape = ScoreShape<T, kDim, kTiles, kWarps>;
  using KeyFeed = typename Shape::KeyFeed;
  using Layout = typename KeyFeed::Layout;
  extern __shared__ __align__(1024) uint4 memory[];
  char* at = reinterpret_cast<char*>(memory);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  char* const ring = at + warp * of.stages * KeyFeed::kStageBytes;
  at += of.stages * Shape::kStage;
  typename Shape::OwnQueries queries(reinterpret_cast<MultipliedAs<T>*>(at));
  at += Shape::OwnQueries::kBytes;
  auto* const warp_sums = reinterpret_cast<LogSum(*)[kTileQueries]>(at);
  at += kWarps * kTileQueries * sizeof(LogSum);
  auto& share = *reinterpret_cast<Share*>(at);
  at += sizeof share;
  auto* const masks = reinterpret_cast<std::uint32_t*>(at) + warp * 8;

  ScoreSource source{of};
  Sharing<ScoreSource> sharing(source, share, of.partials.taken, of.cache.fresh >= 0,
                               reinterpret_cast<std::byte*>(memory), of.stages * Shape::kStage);
  // With few heads the code of the launches behind counts more than a sixtieth of the time.
  KeyFeed feed(shared_address(ring), masks, of.stages, kWarps, of.count <= kFewUnits);
  const std::uint32_t first_key = Layout::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  constexpr float kLog2OfE = 1.4426950408889634F;

  while (sharing.next()) {
    for (int from = 0; from < sharing.count(); from += kBatch) {
      const int count = min(kBatch, sharing.count() - from);
      sharing.list(from);
      feed.start(share.segments, count, sharing.waited());
      sharing.set_waited();
      queries.ask(of.q, share.segments[0]);
      for (int n = 0; n < count; ++n) {
        const Segment& s = share.segments[n];
        if (n > 0) queries.ask(of.q, s);
        __syncthreads();  // the last segment's queries are read
        queries.store();
        __syncthreads();
        std::uint32_t kept[kTiles][kDim / 16][4];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
#pragma unroll
          for (int k = 0; k < kDim / 16; ++k) queries.load(kept[m][k], m, k);
        }
        LogSum sums[kTiles];
        for (int tile = s.begin + warp; tile < s.end; tile += kWarps) {
          std::uint32_t mask = 0;
          const std::uint32_t keys = feed.take(mask);
          float scores[kTiles][kScoreKeys / 8][4] = {};
          score_keys<T, kDim, kTiles>(kept, keys + first_key, scores);
          const KeyScales<T, kScoreKeys> scales(keys + KeyFeed::kRowsBytes);
          feed.release();
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            const int query = m * 8 + lane / 4;
            float* const to = of.scores + static_cast<std::size_t>(s.first_query + query) * of.stride;
            float largest = sums[m].largest;
#pragma unroll
            for (int h = 0; h < kScoreKeys / 8; ++h) {
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int key = h * 8 + lane % 4 * 2 + e;
                float& score = scores[m][h][e];
                float sum = (score + scores[m][h][e + 2]) * of.scale;
                if constexpr (kScaled<T>) sum *= scales.at(h, e);
                score = (mask >> key & 1U) != 0 ? sum : -INFINITY;
                largest = fmaxf(largest, score * kLog2OfE);
              }
            }
            sums[m].sum *= exp2_of(sums[m].largest - or_zero(largest));
            sums[m].largest = largest;
#pragma unroll
            for (int h = 0; h < kScoreKeys / 8; ++h) {
              const int slot = tile * kScoreKeys + h * 8 + lane % 4 * 2;
              const float2 both = make_float2(scores[m][h][0], scores[m][h][1]);
              sums[m].sum +=
                  exp2_of(both.x * kLog2OfE - or_zero(largest)) + exp2_of(both.y * kLog2OfE - or_zero(largest));
              if (query >= s.queries) continue;
              if (slot + 1 < s.entries && of.stride % 2 == 0) {
                *reinterpret_cast<float2*>(to + slot) = both;
              } else {
                if (slot < s.entries) to[slot] = both.x;
                if (slot + 1 < s.entries) to[slot + 1] = both.y;
              }
            }
          }
        }
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          sums[m].add_from(~0U, 1);
          sums[m].add_from(~0U, 2);
          if (lane % 4 == 0) warp_sums[warp][m * 8 + lane / 4] = sums[m];
        }
        __syncthreads();
        const int query = static_cast<int>(threadIdx.x);
        float* const partial = of.partials.values + own_partial(s, sharing.range()) * partial_values(kDim);
        if (query < s.queries) {
          LogSum all = warp_sums[0][query];
          for (int w = 1; w < kWarps; ++w) all.add(warp_sums[w][query]);
          if (s.ranges == 1) {
            of.lse[s.first_query + query] = all.value();
          } else {
            partial[query] = all.largest;
            partial[kTileQueries + query] = all.sum;
          }
        }
        if (s.ranges > 1 && arrive_last(s, of.partials, share)) {
          for (int q = warp; q < s.queries; q += kWarps) {
            LogSum all;
            for (int b = lane; b < static_cast<int>(s.ranges); b += 32) {
              const float* const other = of.partials.values + partial_of(s, b) * partial_values(kDim);
              all.add({__ldcg(other + q), __ldcg(other + kTileQueries + q)});
            }
            for (int step = 16; step > 0; step /= 2) all.add_from(~0U, step);
            if (lane == 0) of.lse[s.first_query + q] = all.value();
          }
        }
      }
    }
  }
}

}  // namespace glimpse::kernels::cuda
