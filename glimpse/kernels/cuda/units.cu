// The kernels of units.h. Scores: eight lanes of a warp have a unit, blocks of threads share a search. Softmax: a block
// for each query of a search. A gate's query: a block for each gate, a warp for each dimension in turn.
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/units.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLanes = 8;  ///< of a unit
constexpr int kUnitsAtOnce = kThreads / kLanes;
constexpr int kUnitsOfBlock = 4 * kUnitsAtOnce;

struct UnitArguments {
  UnitSearchOp op;
  int dim = 0, parts = 1;  ///< blocks that share a search
};

/// The queries that search for one, [queries, w], and where their scores go.
__device__ const float* queries_of(const UnitArguments& of, const UnitSearch& search, std::size_t head) {
  if (search.gate >= 0) return of.op.gate_queries.raw() + static_cast<std::size_t>(search.gate) * kMostGateDim;
  return of.op.q.raw() + head * of.dim;
}
__device__ std::size_t first_query(const UnitArguments& of, const UnitSearch& search) {
  return (static_cast<std::size_t>(search.row) * of.op.cache.kv_heads + search.head) * of.op.group;
}
__device__ int query_count(const UnitArguments& of, const UnitSearch& search) {
  return search.gate >= 0 || search.mean_query != 0 ? 1 : of.op.group;
}

__device__ float sum_of_lanes(float sum) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  return sum;
}

/// What eight lanes add up to for a unit's row and a query in shared memory.
template <UnitKind kKind>
__device__ float unit_score(const UnitSearch& search, const float4* row, const float* query, float length,
                            float radius) {
  const int pieces = search.width / 4, lane = static_cast<int>(threadIdx.x) % kLanes;
  float dot = 0, variance = 0;
  for (int piece = lane; piece < pieces; piece += kLanes) {
    const float4 x = row[piece];
    const float4 q = reinterpret_cast<const float4*>(query)[piece];
    if constexpr (kKind == UnitKind::bounds) {
      const float4 y = row[pieces + piece];
      dot += q.x * (q.x < 0 ? x.x : y.x) + q.y * (q.y < 0 ? x.y : y.y);
      dot += q.z * (q.z < 0 ? x.z : y.z) + q.w * (q.w < 0 ? x.w : y.w);
    } else {
      dot += q.x * x.x + q.y * x.y;
      dot += q.z * x.z + q.w * x.w;
    }
    if constexpr (kKind == UnitKind::deviation) {
      const float4 v = row[pieces + piece];
      const float weight = search.weight * search.scale;
      const float4 w = make_float4(weight * q.x, weight * q.y, weight * q.z, weight * q.w);
      variance += w.x * w.x * v.x + w.y * w.y * v.y;
      variance += w.z * w.z * v.z + w.w * w.w * v.w;
    }
  }
  const float score = search.scale * sum_of_lanes(dot);
  if constexpr (kKind == UnitKind::sphere) return score + length * radius;
  if constexpr (kKind == UnitKind::deviation) return score + sqrtf(sum_of_lanes(variance));
  return score;
}

template <UnitKind kKind>
__device__ void score_units(const UnitArguments& of, const UnitSearch& search, const float* queries,
                            const float* lengths) {
  constexpr bool kTwo = kKind == UnitKind::deviation || kKind == UnitKind::bounds;
  const std::size_t values = static_cast<std::size_t>(search.width) * (kTwo ? 2 : 1);
  const int count = query_count(of, search);
  float* const out = of.op.out.scores.raw() + first_query(of, search) * of.op.out.stride;
  const int from = search.first + static_cast<int>(blockIdx.x) % of.parts * kUnitsOfBlock;
  const int end = min(search.last, from + kUnitsOfBlock);
  for (int first = from; first < end; first += kUnitsAtOnce) {
    const int unit = first + static_cast<int>(threadIdx.x) / kLanes;
    const int here = min(unit, end - 1);  // all lanes of a warp take part in sums
    const auto* const row = reinterpret_cast<const float4*>(search.rows + static_cast<std::size_t>(here) * values);
    const float radius = kKind == UnitKind::sphere ? search.radii[here] : 0.0F;
    for (int j = 0; j < count; ++j) {
      const float score = unit_score<kKind>(search, row, queries + j * search.width, lengths[j], radius);
      if (unit < end && threadIdx.x % kLanes == 0) out[j * of.op.out.stride + unit] = score;
    }
  }
}

__global__ void __launch_bounds__(kThreads) search_units_kernel(const __grid_constant__ UnitArguments of) {
  extern __shared__ float queries[];  // [queries, w], and behind them their lengths, scaled
  const UnitSearch search = of.op.searches.raw()[static_cast<int>(blockIdx.x) / of.parts];
  if (search.first + static_cast<int>(blockIdx.x) % of.parts * kUnitsOfBlock >= search.last) return;
  const int count = query_count(of, search), width = search.width;
  const float* const from = queries_of(of, search, first_query(of, search));
  float* const lengths = queries + count * width;
  for (int i = static_cast<int>(threadIdx.x); i < count * width; i += kThreads) {
    float value = from[i];
    if (search.mean_query != 0) {
      for (int j = 1; j < of.op.group; ++j) value += from[j * width + i];
      value /= static_cast<float>(of.op.group);
    }
    queries[i] = value;
  }
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x) / 32; j < count; j += kWarps) {
    float squares = 0;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < width; i += 32) {
      squares += queries[j * width + i] * queries[j * width + i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0U, squares, step);
    if (threadIdx.x % 32 == 0) lengths[j] = sqrtf(squares) * search.scale;
  }
  __syncthreads();
  switch (search.kind) {
    case UnitKind::mean:
      return score_units<UnitKind::mean>(of, search, queries, lengths);
    case UnitKind::sphere:
      return score_units<UnitKind::sphere>(of, search, queries, lengths);
    case UnitKind::deviation:
      return score_units<UnitKind::deviation>(of, search, queries, lengths);
    case UnitKind::bounds:
      return score_units<UnitKind::bounds>(of, search, queries, lengths);
  }
}

/// Sums or maxima over the threads of a block, the same in all of them.
template <class Join>
__device__ float join_block(float value, float* room, const Join& join) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(~0U, value, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
  __syncthreads();
  value = room[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) value = join(value, room[w]);
  return value;
}

__global__ void __launch_bounds__(kThreads) weigh_units_kernel(const __grid_constant__ UnitArguments of) {
  __shared__ float room[kWarps];
  const UnitSearch search = of.op.searches.raw()[static_cast<int>(blockIdx.x) / of.op.group];
  const int query = static_cast<int>(blockIdx.x) % of.op.group;
  if (query >= query_count(of, search) || (search.softmax == 0 && search.marked_count == 0)) return;
  float* const scores = of.op.out.scores.raw() + (first_query(of, search) + query) * of.op.out.stride;
  const auto mark = [&](float value) {
    for (int i = static_cast<int>(threadIdx.x); i < search.marked_count; i += kThreads) {
      const int unit = search.marked[i];
      if (unit >= search.first && unit < search.last) scores[unit] = value;
    }
    __syncthreads();
  };
  if (search.softmax != 0) {
    mark(-INFINITY);
    float most = search.zeros > 0 ? 0.0F : -INFINITY, sum = 0;
    for (int unit = search.first + static_cast<int>(threadIdx.x); unit < search.last; unit += kThreads) {
      most = fmaxf(most, scores[unit]);
    }
    most = join_block(most, room, [](float a, float b) { return fmaxf(a, b); });
    if (most > -INFINITY) {
      for (int unit = search.first + static_cast<int>(threadIdx.x); unit < search.last; unit += kThreads) {
        sum += expf(scores[unit] - most);
      }
      sum = join_block(sum, room, [](float a, float b) { return a + b; });
      const float all = most + logf(sum + static_cast<float>(search.zeros) * expf(-most));
      for (int unit = search.first + static_cast<int>(threadIdx.x); unit < search.last; unit += kThreads) {
        scores[unit] -= all;
      }
    }
    __syncthreads();
  }
  mark(INFINITY);
}

struct GateRoom {
  float sums[kMostGateDim];
  float squares[kWarps];
};

/// A row that was turned at its position, back: [dim] in shared memory. The block synchronises.
__device__ void turn_back(float* row, const float* turn, int turned, bool neox) {
  for (int i = static_cast<int>(threadIdx.x); i < turned / 2; i += kThreads) {
    const int first = neox ? i : 2 * i, second = neox ? i + turned / 2 : 2 * i + 1;
    const float cosine = turn[2 * i], sine = turn[2 * i + 1];
    const float squares = cosine * cosine + sine * sine;  // the magnitude's square
    const float a = row[first], b = row[second];
    row[first] = (a * cosine + b * sine) / squares;
    row[second] = (b * cosine - a * sine) / squares;
  }
}

__global__ void __launch_bounds__(kThreads) gate_queries_kernel(const __grid_constant__ GateQueriesOp of) {
  extern __shared__ float rows[];  // [g, d]
  __shared__ GateRoom room;
  const GateQuery gate = of.gates.raw()[blockIdx.x];
  const int d = of.head_dim, lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const float* const q = of.q.raw() + (static_cast<std::size_t>(gate.row) * of.kv_heads + gate.head) * of.group * d;
  for (int i = static_cast<int>(threadIdx.x); i < of.group * d; i += kThreads) rows[i] = q[i];
  __syncthreads();
  for (int j = 0; j < of.group; ++j) turn_back(rows + j * d, of.angles.raw() + gate.turn, of.turned, of.neox);
  __syncthreads();
  for (int e = warp; e < gate.dim; e += kWarps) {
    float sum = 0;
    for (int j = 0; j < of.group; ++j) {
      const auto* const weights = reinterpret_cast<const float4*>(
          gate.weights + (static_cast<std::size_t>(j) * gate.dim + static_cast<std::size_t>(e)) * d);
      for (int piece = lane; piece < d / 4; piece += 32) {
        const float4 w = weights[piece];
        const float4 x = reinterpret_cast<const float4*>(rows + j * d)[piece];
        sum += w.x * x.x + w.y * x.y;
        sum += w.z * x.z + w.w * x.w;
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
    if (lane == 0) room.sums[e] = sum;
  }
  __syncthreads();
  float scale = 1;
  if (gate.norm != nullptr) {
    float squares = 0;
    for (int e = static_cast<int>(threadIdx.x); e < gate.dim; e += kThreads) squares += room.sums[e] * room.sums[e];
    squares = join_block(squares, room.squares, [](float a, float b) { return a + b; });
    scale = rsqrtf(squares / static_cast<float>(gate.dim) + gate.epsilon);
  }
  const auto value = [&](int e) { return room.sums[e] * (gate.norm != nullptr ? scale * gate.norm[e] : 1.0F); };
  float* const out = of.out.raw() + static_cast<std::size_t>(blockIdx.x) * kMostGateDim;
  const float* const own_turn = of.angles.raw() + gate.own_turn;
  for (int i = static_cast<int>(threadIdx.x); i < gate.rotated / 2; i += kThreads) {
    const float a = value(i), b = value(i + gate.rotated / 2);
    const float cosine = own_turn[2 * i], sine = own_turn[2 * i + 1];
    out[i] = a * cosine - b * sine;
    out[i + gate.rotated / 2] = a * sine + b * cosine;
  }
  for (int e = gate.rotated + static_cast<int>(threadIdx.x); e < gate.dim; e += kThreads) out[e] = value(e);
}

}  // namespace

void search_units(Stream& stream, const UnitSearchOp& op) {
  if (op.count == 0 || op.most == 0) return;
  check(op.group >= 1 && op.cache.kv_heads > 0, "a search of units has queries");
  UnitArguments of{op, op.cache.format.dim, (op.most + kUnitsOfBlock - 1) / kUnitsOfBlock};
  const int floats = std::max(op.group * (op.cache.format.dim + 1), kMostGateDim + 1);
  const int bytes = floats * static_cast<int>(sizeof(float));
  const Limits limits;
  allow_shared(search_units_kernel, bytes);
  auto* const queue = static_cast<cudaStream_t>(stream.raw());
  launch(search_units_kernel, of, dim3(static_cast<unsigned>(op.count * of.parts), kThreads), bytes,
         {limits, queue, false});
  launch(weigh_units_kernel, of, dim3(static_cast<unsigned>(op.count * op.group), kThreads), 0, {limits, queue, false});
}

void gate_queries(Stream& stream, const GateQueriesOp& op) {
  if (op.count == 0) return;
  check(op.head_dim % 8 == 0 && op.head_dim <= kMaxHeadDim, "a gate's rows come in eights");
  const int bytes = op.group * op.head_dim * static_cast<int>(sizeof(float));
  const Limits limits;
  allow_shared(gate_queries_kernel, bytes);
  launch(gate_queries_kernel, op, dim3(static_cast<unsigned>(op.count), kThreads), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace glimpse::kernels::cuda
