// The kernels of k_means.h. First centroids: a round updates each row's distance to the nearest one, a warp for a row,
// and then a block for each problem draws some more. Assignment: a warp has 32 rows (16 at dimension 256) in registers
// and goes over all centroids on tensor cores; values are two of 16 bits, so that 2^-21 of a product is lost. Moving: a
// warp for each cluster adds its members in order.
#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/k_means.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/mma.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostOfLane = kMaxHeadDim / 32;

/// What KMeansProblem::notes holds.
enum State { kThere, kFresh, kOver, kUnused, kChanged };

__device__ inline int warp_of() {
  return static_cast<int>(threadIdx.x) / 32;
}
__device__ inline int lane_of() {
  return static_cast<int>(threadIdx.x) % 32;
}

template <class T>
__device__ T sum_of_warp(T value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0U, value, step);
  return value;
}

/// A row whose values d = lane + 32 i a warp's lanes hold, scaled to length 1; as it is where it has none.
__device__ void normalise(float (&row)[kMostOfLane], int dim) {
  double squares = 0;
  for (int i = 0; i < dim / 32; ++i) squares += static_cast<double>(row[i]) * row[i];
  squares = sum_of_warp(squares);
  if (!(squares > 0) || isinf(squares)) return;
  const double factor = 1 / sqrt(squares);
  for (int i = 0; i < dim / 32; ++i) row[i] = static_cast<float>(row[i] * factor);
}

template <class T>
__global__ void __launch_bounds__(kThreads) key_rows_kernel(const __grid_constant__ KeyRowsOp of) {
  const int parts = (of.spans + kWarps - 1) / kWarps;
  const int head = static_cast<int>(blockIdx.x) / parts;
  const int span = static_cast<int>(blockIdx.x) % parts * kWarps + warp_of();
  if (span >= of.spans) return;
  const int begin = of.begins.raw()[span], end = of.ends.raw()[span];
  const HeadView view = of.heads.raw()[head];
  const int dim = of.format.dim;
  float row[kMostOfLane];
  for (int i = 0; i < kMostOfLane; ++i) row[i] = of.largest ? -INFINITY : 0.0F;
  for (int slot = begin; slot < end; ++slot) {
    const StoredRow<T> key(view.k_plane, row_number(view, slot), dim);
    for (int i = 0; i < dim / 32; ++i) {
      const float x = key.at(lane_of() + 32 * i);
      row[i] = of.largest ? fmaxf(row[i], x) : row[i] + x;
    }
  }
  if (!of.largest) {
    for (int i = 0; i < dim / 32; ++i) row[i] /= static_cast<float>(end - begin);
  }
  if (of.scaled) normalise(row, dim);
  float* const to = of.rows.raw() + (static_cast<std::size_t>(head) * of.spans + span) * dim;
  for (int i = 0; i < dim / 32; ++i) to[lane_of() + 32 * i] = row[i];
}

/// A number from 0 to 1 that follows from a problem's round.
__device__ double draw_of(int round) {
  std::uint64_t x = 0x6c796368656531ULL + static_cast<std::uint64_t>(round) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

__global__ void seed_start_kernel(const __grid_constant__ KMeansOp of) {
  const KMeansProblem& problem = of.problems.raw()[blockIdx.x];
  for (int i = static_cast<int>(threadIdx.x); i < kMeansNotes; i += static_cast<int>(blockDim.x)) {
    problem.notes[i] = i == kThere || i == kFresh ? 1 : 0;
  }
  if (threadIdx.x == 0) problem.seeds[0] = static_cast<int>(draw_of(0) * problem.sample_count);
  for (int i = static_cast<int>(threadIdx.x); i < problem.sample_count; i += static_cast<int>(blockDim.x)) {
    problem.distances[i] = 2.0F;
  }
}

struct SeedArguments {
  KMeansOp op;
  int tiles = 1, round = 0;
};

/// Distances to the seeds of the last round, halved: 1 - product of rows of length 1.
__global__ void __launch_bounds__(kThreads) seed_update_kernel(const __grid_constant__ SeedArguments of) {
  __shared__ float seeds[kSeedsAtOnce][kMaxHeadDim];
  __shared__ float tile[kSeedTile];
  const KMeansProblem& problem = of.op.problems.raw()[static_cast<int>(blockIdx.x) / of.tiles];
  const int first = static_cast<int>(blockIdx.x) % of.tiles * kSeedTile, dim = of.op.dim;
  const int there = problem.notes[kThere], fresh = problem.notes[kFresh];
  if (first >= problem.sample_count || fresh == 0) return;
  for (int i = static_cast<int>(threadIdx.x); i < fresh * dim; i += kThreads) {
    const int seed = problem.seeds[there - fresh + i / dim];
    seeds[i / dim][i % dim] = problem.sample[static_cast<std::size_t>(seed) * dim + i % dim];
  }
  __syncthreads();
  for (int r = warp_of(); r < kSeedTile; r += kWarps) {
    if (first + r >= problem.sample_count) {
      if (lane_of() == 0) tile[r] = 0;
      continue;
    }
    const float* const row = problem.sample + static_cast<std::size_t>(first + r) * dim;
    float sums[kSeedsAtOnce] = {};
    for (int i = lane_of(); i < dim; i += 32) {
      const float x = row[i];
#pragma unroll
      for (int s = 0; s < kSeedsAtOnce; ++s) sums[s] += x * (s < fresh ? seeds[s][i] : 0.0F);
    }
    float distance = problem.distances[first + r];
#pragma unroll
    for (int s = 0; s < kSeedsAtOnce; ++s) {
      if (s >= fresh) break;
      const float here = 1 - sum_of_warp(sums[s]);
      // Equal rows differ by rounding only.
      distance = here > 1e-6F ? fminf(distance, here) : 0.0F;
      if (distance == 0) break;
    }
    for (int s = 0; s < fresh; ++s) {
      if (problem.seeds[there - fresh + s] == first + r) distance = 0;
    }
    if (lane_of() == 0) {
      problem.distances[first + r] = distance;
      tile[r] = distance;
    }
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    double sum = 0;
    for (int r = lane_of(); r < kSeedTile; r += 32) sum += tile[r];
    sum = sum_of_warp(sum);
    if (lane_of() == 0) problem.sums[first / kSeedTile] = sum;
  }
}

/// The first of numbers by lanes whose running sum, after `before`, is over `at`; 32 where none is. `before` goes on to
/// the sum ahead of it, or to that of all.
__device__ int first_over(double value, double at, double& before) {
  double sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const double other = __shfl_up_sync(~0U, sum, step);
    if (lane_of() >= step) sum += other;
  }
  const unsigned over = __ballot_sync(~0U, value > 0 && before + sum > at);
  const double all = __shfl_sync(~0U, sum, 31);
  if (over == 0) {
    before += all;
    return 32;
  }
  const int lane = __ffs(static_cast<int>(over)) - 1;
  before += __shfl_sync(~0U, sum - value, lane);
  return lane;
}

/// A block of as many warps as seeds: each finds the row at its place in the sum of distances.
__global__ void __launch_bounds__(32 * kSeedsAtOnce) seed_draw_kernel(const __grid_constant__ SeedArguments of) {
  __shared__ int drawn[kSeedsAtOnce];
  const KMeansProblem& problem = of.op.problems.raw()[blockIdx.x];
  const int there = problem.notes[kThere], wanted = min(kSeedsAtOnce, problem.clusters - there);
  const int tiles = (problem.sample_count + kSeedTile - 1) / kSeedTile, warp = warp_of();
  if (wanted <= 0 || problem.notes[kOver] != 0) {
    __syncthreads();
    if (threadIdx.x == 0) problem.notes[kFresh] = 0;
    return;
  }
  double total = 0;
  for (int tile = lane_of(); tile < tiles; tile += 32) total += problem.sums[tile];
  total = sum_of_warp(total);
  if (lane_of() == 0) drawn[warp] = -1;
  if (total > 0 && warp < wanted) {
    const double at = (draw_of(of.round) + warp) / wanted * total;
    double before = 0;
    int found = -1, last = -1;
    for (int tile = 0; tile < tiles && found < 0; tile += 32) {
      const double sum = tile + lane_of() < tiles ? problem.sums[tile + lane_of()] : 0.0;
      const unsigned some = __ballot_sync(~0U, sum > 0);
      if (some != 0) last = tile + 31 - __clz(static_cast<int>(some));
      const int lane = first_over(sum, at, before);
      if (lane < 32) found = tile + lane;
    }
    if (found < 0) found = last, before = -1;  // rounding: the last that has any
    int row = -1;
    for (int r = 0; r < kSeedTile; r += 32) {
      const int here = found * kSeedTile + r + lane_of();
      const double distance = here < problem.sample_count ? static_cast<double>(problem.distances[here]) : 0.0;
      const unsigned some = __ballot_sync(~0U, distance > 0);
      const int lane = before < 0 ? 32 : first_over(distance, at, before);
      if (lane < 32) {
        row = found * kSeedTile + r + lane;
        break;
      }
      if (some != 0) row = found * kSeedTile + r + 31 - __clz(static_cast<int>(some));
    }
    if (lane_of() == 0) drawn[warp] = row;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int fresh = 0;
  for (int i = 0; i < wanted; ++i) {
    if (drawn[i] < 0 || (i > 0 && drawn[i] == drawn[i - 1])) continue;
    problem.seeds[there + fresh++] = drawn[i];
  }
  problem.notes[kFresh] = fresh;
  problem.notes[kThere] = there + fresh;
  if (fresh == 0) problem.notes[kOver] = 1;
}

/// Writes a centroid as products take it; its values lie as normalise() has them.
__device__ void pack_centroid(const KMeansProblem& problem, int cluster, const float (&row)[kMostOfLane], int dim) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(problem.packed);
  for (int i = 0; i < dim / 32; ++i) {
    const int d = lane_of() + 32 * i;
    // As 16 x 8 tiles of B, four words for each of 32 threads: two pairs of values, and of what is left of them.
    const __half most = __float2half_rn(row[i]);
    const __half rest = __float2half_rn(row[i] - __half2float(most));
    const std::size_t tile = static_cast<std::size_t>(cluster / 8) * (dim / 16) + d / 16;
    const std::size_t thread = static_cast<std::size_t>(cluster % 8 * 4 + d % 8 / 2);
    const std::size_t word = (tile * 32 + thread) * 4 + d % 16 / 8;
    halves[word * 2 + d % 2] = __half_as_ushort(most);
    halves[(word + 2) * 2 + d % 2] = __half_as_ushort(rest);
  }
}

struct MeansArguments {
  KMeansOp op;
  int parts = 1, iteration = 0;
};

/// True where an iteration has something to do: the one before it changed something.
__device__ bool goes_on(const KMeansProblem& problem, int iteration) {
  return iteration < 2 || problem.notes[kChanged + iteration - 2] != 0;
}

/// Adds up a cluster's rows in order; returns how many there are.
__device__ int add_members(const KMeansProblem& problem, int cluster, float (&row)[kMostOfLane], int dim) {
  int count = 0;
  for (int first = 0; first < problem.count; first += 32) {
    const int here = first + lane_of();
    unsigned members = __ballot_sync(~0U, here < problem.count && problem.nearest[here] == cluster);
    count += __popc(members);
    for (; members != 0; members &= members - 1) {
      const int member = first + __ffs(static_cast<int>(members)) - 1;
      const float* const from = problem.rows + static_cast<std::size_t>(member) * dim;
      for (int i = 0; i < dim / 32; ++i) row[i] += from[lane_of() + 32 * i];
    }
  }
  return count;
}

/// Iteration 0: centroids are the seeds. Others: the direction of the members' sum; an empty cluster stays.
__global__ void __launch_bounds__(kThreads) move_kernel(const __grid_constant__ MeansArguments of) {
  const KMeansProblem& problem = of.op.problems.raw()[static_cast<int>(blockIdx.x) / of.parts];
  const int cluster = static_cast<int>(blockIdx.x) % of.parts * kWarps + warp_of(), dim = of.op.dim;
  const int clusters = problem.notes[kThere];
  if (!goes_on(problem, of.iteration)) return;
  float row[kMostOfLane] = {};
  if (cluster >= clusters) {  // the last tile's other columns are multiplied too
    if (of.iteration == 0 && cluster < whole_tiles(clusters)) pack_centroid(problem, cluster, row, dim);
    return;
  }
  if (of.iteration == 0) {
    const float* const from = problem.sample + static_cast<std::size_t>(problem.seeds[cluster]) * dim;
    for (int i = 0; i < dim / 32; ++i) row[i] = from[lane_of() + 32 * i];
  } else if (add_members(problem, cluster, row, dim) == 0) {
    return;
  }
  normalise(row, dim);
  float* const to = problem.centroids + static_cast<std::size_t>(cluster) * dim;
  for (int i = 0; i < dim / 32; ++i) to[lane_of() + 32 * i] = row[i];
  pack_centroid(problem, cluster, row, dim);
}

struct Best {
  float value = -INFINITY;
  int cluster = 0;
  __device__ void take(float other, int at) {
    if (other > value) value = other, cluster = at;
  }
};

/// kTiles times sixteen rows by all centroids; rows' values are two of 16 bits, as the centroids' are.
template <int kDim, int kTiles>
__global__ void __launch_bounds__(kThreads, 1) assign_kernel(const __grid_constant__ MeansArguments of) {
  constexpr int kSteps = kDim / 16;
  const KMeansProblem& problem = of.op.problems.raw()[static_cast<int>(blockIdx.x) / of.parts];
  if (!goes_on(problem, of.iteration)) return;
  const int first = (static_cast<int>(blockIdx.x) % of.parts * kWarps + warp_of()) * 16 * kTiles;
  if (first >= problem.count) return;
  const int lane = lane_of(), clusters = problem.notes[kThere];
  std::uint32_t most[kTiles][kSteps][4], rest[kTiles][kSteps][4];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = min(problem.count - 1, first + t * 16 + lane / 4 + i % 2 * 8);
        const float2 x = *reinterpret_cast<const float2*>(problem.rows + static_cast<std::size_t>(row) * kDim + k * 16 +
                                                          lane % 4 * 2 + i / 2 * 8);
        const __half2 high = __floats2half2_rn(x.x, x.y);
        const float2 back = __half22float2(high);
        const __half2 low = __floats2half2_rn(x.x - back.x, x.y - back.y);
        memcpy(&most[t][k][i], &high, sizeof high);
        memcpy(&rest[t][k][i], &low, sizeof low);
      }
    }
  }
  Best best[kTiles][2];
  const auto* packed = reinterpret_cast<const uint4*>(problem.packed) + lane;
  uint4 next = packed[0];
  for (int column = 0; column < clusters; column += 8) {
    float sums[kTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const uint4 b = next;
      packed += 32;
      if (k + 1 < kSteps || column + 8 < clusters) next = *packed;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        multiply<__half>(sums[t], most[t][k], b.x, b.y);
        multiply<__half>(sums[t], rest[t][k], b.x, b.y);
        multiply<__half>(sums[t], most[t][k], b.z, b.w);
      }
    }
    const int cluster = column + lane % 4 * 2;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (cluster < clusters) best[t][half].take(sums[t][2 * half], cluster);
        if (cluster + 1 < clusters) best[t][half].take(sums[t][2 * half + 1], cluster + 1);
      }
    }
  }
  bool changed = false;
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Best& of_row = best[t][half];
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        const float value = __shfl_xor_sync(~0U, of_row.value, step);
        const int cluster = __shfl_xor_sync(~0U, of_row.cluster, step);
        if (value > of_row.value || (value == of_row.value && cluster < of_row.cluster)) {
          of_row.value = value;
          of_row.cluster = cluster;
        }
      }
      const int row = first + t * 16 + lane / 4 + half * 8;
      if (lane % 4 != 0 || row >= problem.count) continue;
      changed |= of.iteration > 0 && problem.nearest[row] != of_row.cluster;
      problem.nearest[row] = of_row.cluster;
    }
  }
  if (of.iteration > 0 && __any_sync(~0U, changed) && lane == 0) problem.notes[kChanged + of.iteration - 1] = 1;
}

/// An op whose problems some blocks share.
template <class Op>
struct Shared {
  Op op;
  int parts = 1;
};

/// A warp for a cluster.
__global__ void __launch_bounds__(kThreads) cluster_means_kernel(const __grid_constant__ Shared<ClusterMeansOp> of) {
  const int number = static_cast<int>(blockIdx.x) / of.parts, dim = of.op.dim;
  const KMeansProblem& problem = of.op.problems.raw()[number];
  const int cluster = static_cast<int>(blockIdx.x) % of.parts * kWarps + warp_of();
  if (cluster >= problem.notes[kThere]) return;
  float row[kMostOfLane] = {};
  const int count = add_members(problem, cluster, row, dim);
  float* const to = of.op.means.raw() + (static_cast<std::size_t>(number) * of.op.most_clusters + cluster) * dim;
  for (int i = 0; i < dim / 32; ++i) to[lane_of() + 32 * i] = count == 0 ? 0.0F : row[i] / static_cast<float>(count);
}

/// A warp for a row.
__global__ void __launch_bounds__(kThreads) cluster_reach_kernel(const __grid_constant__ Shared<ClusterReachOp> of) {
  const int number = static_cast<int>(blockIdx.x) / of.parts, dim = of.op.dim;
  const KMeansProblem& problem = of.op.problems.raw()[number];
  const int row = static_cast<int>(blockIdx.x) % of.parts * kWarps + warp_of();
  if (row >= problem.count) return;
  const float* const x = problem.rows + static_cast<std::size_t>(row) * dim;
  const float* const y = problem.centroids + static_cast<std::size_t>(problem.nearest[row]) * dim;
  double squares = 0;
  for (int d = lane_of(); d < dim; d += 32) {
    const double off = static_cast<double>(x[d]) - static_cast<double>(__half2float(__float2half_rn(y[d])));
    squares += off * off;
  }
  squares = sum_of_warp(squares);
  if (lane_of() != 0) return;
  // A few units in the last place of a double are what the sum and the root may lack.
  of.op.distances.raw()[static_cast<std::size_t>(number) * of.op.most_rows + row] =
      __double2float_ru(sqrt(squares) * (1 + 1e-14));
}

template <class Kernel, class Arguments>
void launch_all(Stream& stream, Kernel* kernel, const Arguments& of, std::int64_t blocks, int threads = kThreads) {
  const Limits limits;
  launch(kernel, of, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(threads)), 0,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

/// A warp for each of up to `most` parts of each problem.
template <class Op>
void launch_warps(Stream& stream, void (*kernel)(Shared<Op>), const Op& op, std::int32_t most) {
  if (op.problem_count == 0) return;
  const Shared<Op> of{op, (most + kWarps - 1) / kWarps};
  launch_all(stream, kernel, of, std::int64_t{op.problem_count} * of.parts);
}

template <int kDim, int kTiles>
void assign(Stream& stream, MeansArguments of) {
  constexpr int kRows = kWarps * 16 * kTiles;
  of.parts = (of.op.most_rows + kRows - 1) / kRows;
  launch_all(stream, assign_kernel<kDim, kTiles>, of, std::int64_t{of.op.problem_count} * of.parts);
}

void seed(Stream& stream, const KMeansOp& op) {
  launch_all(stream, seed_start_kernel, op, op.problem_count);
  SeedArguments of{op, (op.most_sampled + kSeedTile - 1) / kSeedTile, 0};
  const int rounds = (op.most_clusters - 1 + kSeedsAtOnce - 1) / kSeedsAtOnce;
  const int more = op.most_clusters > 1 ? rounds / 16 + 1 : 0;  // where two draws were of one row
  for (of.round = 1; of.round <= rounds + more; ++of.round) {
    launch_all(stream, seed_update_kernel, of, std::int64_t{op.problem_count} * of.tiles);
    launch_all(stream, seed_draw_kernel, of, op.problem_count, 32 * kSeedsAtOnce);
  }
}

}  // namespace

void key_rows(Stream& stream, const KeyRowsOp& op) {
  require_supported(op.format);
  if (op.head_count == 0 || op.spans == 0) return;
  const std::int64_t blocks = std::int64_t{op.head_count} * ((op.spans + kWarps - 1) / kWarps);
  launch_all(stream, for_stored(op.format.type, [](auto type) { return &key_rows_kernel<decltype(type)>; }), op,
             blocks);
}

void k_means(Stream& stream, const KMeansOp& op) {
  if (op.problem_count == 0) return;
  seed(stream, op);
  for (int iteration = 0; iteration <= kMeansIterations; ++iteration) {
    const MeansArguments of{op, (whole_tiles(op.most_clusters) + kWarps - 1) / kWarps, iteration};
    launch_all(stream, move_kernel, of, std::int64_t{op.problem_count} * of.parts);
    switch (op.dim) {
      case 64:
        assign<64, 2>(stream, of);
        break;
      case 96:
        assign<96, 2>(stream, of);
        break;
      case 128:
        assign<128, 2>(stream, of);
        break;
      case 256:
        assign<256, 1>(stream, of);
        break;
      default:
        check(false, "rows of 64, 96, 128 or 256 values");
    }
  }
}

void cluster_means(Stream& stream, const ClusterMeansOp& op) {
  launch_warps(stream, cluster_means_kernel, op, op.most_clusters);
}

void cluster_reach(Stream& stream, const ClusterReachOp& op) {
  launch_warps(stream, cluster_reach_kernel, op, op.most_rows);
}

}  // namespace glimpse::kernels::cuda
