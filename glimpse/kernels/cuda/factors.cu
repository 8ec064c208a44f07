// The kernels of factors.h. Products are f32 on CUDA cores, in tiles of 64 x 64 (tile_share.cuh).
#include "glimpse/kernels/cuda/cache_rows.cuh"
#include "glimpse/kernels/cuda/factors.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/tile_share.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kThreads = kShareThreads;
constexpr int kTile = kShareTile;
constexpr int kDeep = kShareDeep;
static_assert(kTile == kGramTile);

template <class T>
__global__ void __launch_bounds__(kThreads) keys_before_rope_kernel(const __grid_constant__ KeysBeforeRopeOp of) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t number = static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + warp;
  const int row = static_cast<int>(number / of.head_count), head = static_cast<int>(number % of.head_count);
  if (row >= of.count) return;
  const int slot = of.first + row, dim = of.format.dim;
  const HeadView view = of.heads.raw()[head];
  const StoredRow<T> key(view.k_plane, row_number(view, slot), dim);
  float* const to = of.rows.raw() + (static_cast<std::size_t>(row) * of.head_count + head) * dim;
  const float* const angles = of.angles.raw() + static_cast<std::size_t>(slot) * of.turned;
  for (int i = lane; i < of.turned / 2; i += 32) {
    const int first = of.neox ? i : 2 * i, second = of.neox ? i + of.turned / 2 : 2 * i + 1;
    const float cosine = angles[2 * i], sine = angles[2 * i + 1];
    const float squares = cosine * cosine + sine * sine;  // the magnitude's square
    const float a = key.at(first), b = key.at(second);
    to[first] = (a * cosine + b * sine) / squares;
    to[second] = (b * cosine - a * sine) / squares;
  }
  for (int d = of.turned + lane; d < dim; d += 32) to[d] = key.at(d);
}

struct GramArguments {
  GramOp op;
  int tiles = 1;  ///< across
  __device__ int pairs() const { return tiles * (tiles + 1) / 2; }
};

/// The tile row and the tile column, not above it, of a number.
__device__ inline int2 tile_of(int number) {
  int row = 0;
  while ((row + 1) * (row + 2) / 2 <= number) ++row;
  return make_int2(row, number - row * (row + 1) / 2);
}

__global__ void __launch_bounds__(kThreads) gram_kernel(const __grid_constant__ GramArguments of) {
  __shared__ alignas(16) float left[kDeep][kTile];
  __shared__ alignas(16) float right[kDeep][kTile];
  const int pair = static_cast<int>(blockIdx.x) % of.pairs(), slice = static_cast<int>(blockIdx.x) / of.pairs();
  const int2 tile = tile_of(pair);
  const int each = (of.op.count + kGramSlices - 1) / kGramSlices;
  const int begin = slice * each, end = min(of.op.count, begin + each);
  TileShare<float> share;
  for (int first = begin; first < end; first += kDeep) {
    for (int i = static_cast<int>(threadIdx.x); i < kDeep * kTile; i += kThreads) {
      const int row = first + i / kTile, column = i % kTile;
      const float* const from = of.op.rows.raw() + static_cast<std::size_t>(row) * of.op.width;
      const int a = tile.x * kTile + column, b = tile.y * kTile + column;
      left[i / kTile][column] = row < end && a < of.op.width ? from[a] : 0.0F;
      right[i / kTile][column] = row < end && b < of.op.width ? from[b] : 0.0F;
    }
    __syncthreads();
    share.add(left, right);
    __syncthreads();
  }
  float* const to = of.op.parts.raw() + static_cast<std::size_t>(blockIdx.x) * kTile * kTile;
  const int row = share.row(), column = share.column();
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) to[(row + i) * kTile + column + j] = share.sums[i][j];
  }
}

__global__ void __launch_bounds__(kThreads) gram_sum_kernel(const __grid_constant__ GramArguments of) {
  const int2 tile = tile_of(static_cast<int>(blockIdx.x));
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int row = tile.x * kTile + i / kTile, column = tile.y * kTile + i % kTile;
    if (row >= of.op.width || column >= of.op.width) continue;
    double sum = 0;
    for (int slice = 0; slice < kGramSlices; ++slice) {
      sum += of.op.parts.raw()[(static_cast<std::size_t>(slice) * of.pairs() + blockIdx.x) * kTile * kTile + i];
    }
    double* const matrix = of.op.matrix.raw();
    const std::size_t width = static_cast<std::size_t>(of.op.width);
    if (column > row) continue;  // of a tile on the diagonal: the other half says the same
    const double all = matrix[row * width + column] + sum;
    matrix[row * width + column] = all;
    matrix[column * width + row] = all;
  }
}

struct ProjectArguments {
  ProjectOp op;
  int across = 1;
};

__global__ void __launch_bounds__(kThreads) project_kernel(const __grid_constant__ ProjectArguments of) {
  __shared__ alignas(16) float left[kDeep][kTile];
  __shared__ alignas(16) float right[kDeep][kTile];
  const int first_row = static_cast<int>(blockIdx.x) / of.across * kTile;
  const int first_column = static_cast<int>(blockIdx.x) % of.across * kTile;
  TileShare<float> share;
  for (int first = 0; first < of.op.width; first += kDeep) {
    for (int i = static_cast<int>(threadIdx.x); i < kDeep * kTile; i += kThreads) {
      // Of X neighbouring threads read neighbouring columns, of V neighbouring directions.
      const int row = first_row + i / kDeep, k = first + i % kDeep;
      left[i % kDeep][i / kDeep] = row < of.op.count && k < of.op.width
                                       ? of.op.rows.raw()[static_cast<std::size_t>(row) * of.op.width + k]
                                       : 0.0F;
      const int deep = first + i / kTile, column = first_column + i % kTile;
      right[i / kTile][i % kTile] =
          deep < of.op.width && column < of.op.columns
              ? of.op.directions.raw()[static_cast<std::size_t>(deep) * of.op.columns + column]
              : 0.0F;
    }
    __syncthreads();
    share.add(left, right);
    __syncthreads();
  }
  const int row = first_row + share.row(), column = first_column + share.column();
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) {
      if (row + i >= of.op.count || column + j >= of.op.columns) continue;
      of.op.out.raw()[static_cast<std::size_t>(row + i) * of.op.columns + column + j] =
          cache_bits(share.sums[i][j], of.op.type);
    }
  }
}

template <class Kernel, class Arguments>
void launch_all(Stream& stream, Kernel* kernel, const Arguments& of, std::int64_t blocks) {
  const Limits limits;
  launch(kernel, of, dim3(static_cast<unsigned>(blocks), kThreads), 0,
         {limits, static_cast<cudaStream_t>(stream.raw()), false});
}

}  // namespace

void keys_before_rope(Stream& stream, const KeysBeforeRopeOp& op) {
  require_supported(op.format);
  if (op.count == 0) return;
  constexpr int kWarps = kThreads / 32;
  const std::int64_t rows = std::int64_t{op.count} * op.head_count;
  launch_all(stream, for_stored(op.format.type, [](auto type) { return &keys_before_rope_kernel<decltype(type)>; }), op,
             (rows + kWarps - 1) / kWarps);
}

void gram(Stream& stream, const GramOp& op) {
  if (op.count == 0) return;
  const GramArguments of{op, (op.width + kTile - 1) / kTile};
  const std::int64_t pairs = std::int64_t{of.tiles} * (of.tiles + 1) / 2;
  launch_all(stream, gram_kernel, of, pairs * kGramSlices);
  launch_all(stream, gram_sum_kernel, of, pairs);
}

void project(Stream& stream, const ProjectOp& op) {
  if (op.count == 0 || op.columns == 0) return;
  check(op.type == KvType::bf16 || op.type == KvType::f16, "factors are of 16 bits");
  const ProjectArguments of{op, (op.columns + kTile - 1) / kTile};
  launch_all(stream, project_kernel, of, std::int64_t{of.across} * ((op.count + kTile - 1) / kTile));
}

}  // namespace glimpse::kernels::cuda
