// A block for each KV head: its warps take turns at rows, each lane pairs of dimensions, in double as the host's sums.
// Warps' sums are added in their order.
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/mean_tokens.h"
#include "glimpse/kernels/cuda/share.cuh"
#include "glimpse/kernels/cuda/stored.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kPairs = kMaxHeadDim / 64;

struct MeanArguments {
  Cache cache;
  MeanTokensOp op;
};

/// Adds rows [begin, end) to totals [2, d] in shared memory; the block synchronises.
template <class T>
__device__ void add_rows(const MeanToken& token, const HeadView& view, int dim, int begin, int end, double* totals,
                         double* parts) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  double sums[2][kPairs][2] = {};
#pragma unroll 4
  for (int position = begin + warp; position < end; position += kWarps) {
    const int slot = position < token.gap ? position : position - token.gone;
    const std::size_t number = row_number(view, slot);
    const StoredRow<T> key(view.k_plane, number, dim), value(view.v_plane, number, dim);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = i * 32 + lane;
      if (pair >= dim / 2) continue;
      const float2 k = key.both(pair), v = value.both(pair);
      sums[0][i][0] += static_cast<double>(k.x), sums[0][i][1] += static_cast<double>(k.y);
      sums[1][i][0] += static_cast<double>(v.x), sums[1][i][1] += static_cast<double>(v.y);
    }
  }
  for (int plane = 0; plane < 2; ++plane) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int pair = i * 32 + lane;
      if (pair >= dim / 2) continue;
      parts[(warp * 2 + plane) * dim + 2 * pair] = sums[plane][i][0];
      parts[(warp * 2 + plane) * dim + 2 * pair + 1] = sums[plane][i][1];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * dim; i += kThreads) {
    double sum = totals[i];
    for (int w = 0; w < kWarps; ++w) sum += parts[w * 2 * dim + i];
    totals[i] = sum;
  }
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(kThreads) mean_tokens_kernel(const __grid_constant__ MeanArguments of) {
  extern __shared__ double memory[];
  const int dim = of.cache.dim;
  double* const totals = memory;           // [2, d]
  double* const parts = memory + 2 * dim;  // [warps, 2, d]
  const MeanToken token = of.op.tokens.raw()[blockIdx.x];
  const HeadView& view = view_of(of.cache, token.row, token.head);
  for (int i = static_cast<int>(threadIdx.x); i < 2 * dim; i += kThreads) totals[i] = token.sums[i];
  __syncthreads();
  if (token.take > token.held) {
    add_rows<T>(token, view, dim, token.held, token.take, totals, parts);
    for (int i = static_cast<int>(threadIdx.x); i < 2 * dim; i += kThreads) token.sums[i] = totals[i];
  }
  if (token.end > token.take) add_rows<T>(token, view, dim, token.take, token.end, totals, parts);

  const double count = token.end - token.first;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::size_t head = (static_cast<std::size_t>(token.row) * of.cache.kv_heads + token.head) * of.op.group;
  for (int query = static_cast<int>(threadIdx.x) / 32; query < of.op.group; query += kWarps) {
    const float* const q = of.op.q.raw() + (head + query) * dim;
    double dot = 0;
    for (int i = lane; i < dim; i += 32) dot += static_cast<double>(q[i]) * (totals[i] / count);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(~0U, dot, step);
    const double score = dot * static_cast<double>(of.op.scale) + log(count);
    const double lse = static_cast<double>(of.op.lse.raw()[head + query]);
    const double top = fmax(score, lse);
    const double read = exp(lse - top), lost = exp(score - top);
    float* const out = of.op.out.raw() + (head + query) * dim;
    for (int i = lane; i < dim; i += 32) {
      const double value = static_cast<double>(out[i]) * read + totals[dim + i] / count * lost;
      out[i] = static_cast<float>(value / (read + lost));
    }
  }
}

}  // namespace

void add_mean_tokens(Stream& stream, const MeanTokensOp& op) {
  require_supported(op.cache.format);
  if (op.count == 0) return;
  MeanArguments of{{.type = op.cache.format.type,
                    .dim = op.cache.format.dim,
                    .kv_heads = op.cache.kv_heads,
                    .rows = op.rows.rows,
                    .sequences = op.cache.sequences,
                    .views = op.cache.views.raw(),
                    .sequence = op.rows.sequence.raw(),
                    .behind = op.rows.behind.raw()},
                   op};
  auto* const kernel = for_stored(op.cache.format.type, [](auto type) { return &mean_tokens_kernel<decltype(type)>; });
  const int bytes = (kWarps + 1) * 2 * op.cache.format.dim * static_cast<int>(sizeof(double));
  Limits limits;
  allow_shared(kernel, bytes);
  launch(kernel, of, dim3(static_cast<unsigned>(op.count), kThreads), bytes,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace glimpse::kernels::cuda
