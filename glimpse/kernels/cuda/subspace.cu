// The kernels of subspace.h. Products are double on CUDA cores, in tiles of 64 x 64 (tile_share.cuh). A block has the
// Cholesky factor of one matrix: its warps take a column's rows each, and then a column of the inverse each.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/launch.cuh"
#include "glimpse/kernels/cuda/subspace.h"
#include "glimpse/kernels/cuda/tile_share.cuh"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kSolveWarps = 16;
constexpr int kMost = kMostSubspaceColumns;
/// Of a column's squares: below it, what is left beside the columns before it may be rounding. A column that a much
/// larger one cut short has its direction still: it is divided by the root of so much, takes no part in those behind
/// it, and gets its length in the next turn.
constexpr double kCutShort = 1e-14;
/// In the last turns: below it a column becomes zero. The others are at right angles to 1e-6 after one turn.
constexpr double kDependent = 1e-10;
constexpr int kLastTurns = 2;

/// out [rows, columns] = left right, for each of `count` matrices.
struct ProductArguments {
  const double* left;   ///< [rows, deep], or [deep, rows] where it is transposed
  const double* right;  ///< [deep, columns]
  double* out;
  int count, rows, columns, deep;
  __host__ __device__ int across() const { return (columns + kShareTile - 1) / kShareTile; }
  __host__ __device__ int tiles() const { return across() * ((rows + kShareTile - 1) / kShareTile); }
};

template <bool kTransposed>
__global__ void __launch_bounds__(kShareThreads) product_kernel(const __grid_constant__ ProductArguments of) {
  __shared__ alignas(16) double left[kShareDeep][kShareTile];
  __shared__ alignas(16) double right[kShareDeep][kShareTile];
  const int matrix = static_cast<int>(blockIdx.x) / of.tiles(), tile = static_cast<int>(blockIdx.x) % of.tiles();
  const int first_row = tile / of.across() * kShareTile, first_column = tile % of.across() * kShareTile;
  const double* const lefts = of.left + static_cast<std::size_t>(matrix) * of.rows * of.deep;
  const double* const rights = of.right + static_cast<std::size_t>(matrix) * of.deep * of.columns;
  TileShare<double> share;
  for (int first = 0; first < of.deep; first += kShareDeep) {
    for (int i = static_cast<int>(threadIdx.x); i < kShareDeep * kShareTile; i += kShareThreads) {
      const int k = kTransposed ? i / kShareTile : i % kShareDeep;
      const int row = kTransposed ? i % kShareTile : i / kShareDeep;
      const std::size_t at = kTransposed ? static_cast<std::size_t>(first + k) * of.rows + first_row + row
                                         : static_cast<std::size_t>(first_row + row) * of.deep + first + k;
      left[k][row] = first_row + row < of.rows && first + k < of.deep ? lefts[at] : 0.0;
      const int deep = first + i / kShareTile, column = first_column + i % kShareTile;
      right[i / kShareTile][i % kShareTile] =
          deep < of.deep && column < of.columns ? rights[static_cast<std::size_t>(deep) * of.columns + column] : 0.0;
    }
    __syncthreads();
    share.add(left, right);
    __syncthreads();
  }
  double* const out = of.out + static_cast<std::size_t>(matrix) * of.rows * of.columns;
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + share.row() + i;
    for (int j = 0; j < 4; ++j) {
      const int column = first_column + share.column() + j;
      if (row < of.rows && column < of.columns)
        out[static_cast<std::size_t>(row) * of.columns + column] = share.sums[i][j];
    }
  }
}

/// Numbers from -1 to 1 that look random, the same for each matrix.
__global__ void __launch_bounds__(kShareThreads) begin_basis_kernel(const __grid_constant__ SubspaceOp of) {
  const std::size_t each = static_cast<std::size_t>(of.width) * of.columns;
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kShareThreads + threadIdx.x;
  if (i >= each * of.count) return;
  std::uint64_t bits = (i % each + 1) * 0x9E3779B97F4A7C15ULL;
  bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBULL;
  bits ^= bits >> 31;
  of.basis.raw()[i] = static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-63;
}

__device__ inline double sum_of_warp(double sum) {
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  return sum;
}

struct SolveArguments {
  double *products, *solved;
  int columns;
  bool last;
};

/// solved = L^-T, where products = L L^T; L takes the place of the lower half of these.
__global__ void __launch_bounds__(kSolveWarps * 32) solve_kernel(const __grid_constant__ SolveArguments of) {
  __shared__ double squares[kMost], row[kMost], column[kMost];
  __shared__ double inverse[kSolveWarps][kMost];
  const int n = of.columns, thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  double* const factor = of.products + static_cast<std::size_t>(blockIdx.x) * n * n;
  double* const solved = of.solved + static_cast<std::size_t>(blockIdx.x) * n * n;
  for (int i = thread; i < n; i += kSolveWarps * 32) squares[i] = factor[i * n + i];
  for (int j = 0; j < n; ++j) {
    for (int k = thread; k < j; k += kSolveWarps * 32) row[k] = factor[j * n + k];
    __syncthreads();
    for (int i = j + warp; i < n; i += kSolveWarps) {
      double sum = 0;
      for (int k = lane; k < j; k += 32) sum += factor[i * n + k] * row[k];
      sum = sum_of_warp(sum);
      if (lane == 0) column[i] = factor[i * n + j] - sum;
    }
    __syncthreads();
    const double least = (of.last ? kDependent : kCutShort) * squares[j];
    const bool cut = column[j] < least;
    const double pivot = !cut ? column[j] : of.last ? 0.0 : least, scale = pivot == 0 ? 0.0 : rsqrt(pivot);
    for (int i = j + thread; i < n; i += kSolveWarps * 32) {
      factor[i * n + j] = (i == j ? pivot : cut ? 0.0 : column[i]) * scale;
    }
    __syncthreads();
  }
  for (int c = warp; c < n; c += kSolveWarps) {
    double* const of_column = inverse[warp];
    for (int i = lane; i < c; i += 32) of_column[i] = 0;
    for (int i = c; i < n; ++i) {
      double sum = 0;
      for (int k = c + lane; k < i; k += 32) sum += factor[i * n + k] * of_column[k];
      sum = (i == c ? 1.0 : 0.0) - sum_of_warp(sum);
      const double pivot = factor[i * n + i];
      if (lane == 0) of_column[i] = pivot == 0 ? 0.0 : sum / pivot;
      __syncwarp();
    }
    for (int i = lane; i < n; i += 32) solved[c * n + i] = of_column[i];
    __syncwarp();
  }
}

template <class Kernel, class Arguments>
void launch_all(Stream& stream, Kernel* kernel, const Arguments& of, std::size_t blocks, int threads = kShareThreads) {
  launch(kernel, of, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(threads)), 0,
         {Limits{}, static_cast<cudaStream_t>(stream.raw()), false});
}

void multiply(Stream& stream, const ProductArguments& of, bool transposed) {
  launch_all(stream, transposed ? product_kernel<true> : product_kernel<false>, of,
             static_cast<std::size_t>(of.count) * static_cast<std::size_t>(of.tiles()));
}

}  // namespace

void find_subspace(Stream& stream, const SubspaceOp& op, int turns) {
  check(op.columns >= 1 && op.columns <= op.width && op.columns <= kMostSubspaceColumns, "columns that there may be");
  check(turns >= 1, "a turn makes the columns of a basis orthogonal");
  if (op.count == 0) return;
  const double *const basis = op.basis.raw(), *const images = op.images.raw();
  const ProductArguments image{op.matrices.raw(), basis, op.images.raw(), op.count, op.width, op.columns, op.width};
  const ProductArguments squares{images, images, op.products.raw(), op.count, op.columns, op.columns, op.width};
  const ProductArguments next{images, op.solved.raw(), op.basis.raw(), op.count, op.width, op.columns, op.columns};
  const ProductArguments last{basis, images, op.products.raw(), op.count, op.columns, op.columns, op.width};
  const std::size_t values = static_cast<std::size_t>(op.count) * op.width * op.columns;
  launch_all(stream, begin_basis_kernel, op, (values + kShareThreads - 1) / kShareThreads);
  for (int turn = 0; turn < turns; ++turn) {
    multiply(stream, image, true);  // a symmetric matrix is its own transpose
    multiply(stream, squares, true);
    launch_all(stream, solve_kernel,
               SolveArguments{op.products.raw(), op.solved.raw(), op.columns, turn >= turns - kLastTurns},
               static_cast<std::size_t>(op.count), kSolveWarps * 32);
    multiply(stream, next, false);
  }
  multiply(stream, image, true);
  multiply(stream, last, true);
}

void turn_subspace(Stream& stream, const TurnSubspaceOp& op) {
  if (op.count == 0 || op.kept == 0) return;
  multiply(stream, {op.basis.raw(), op.rotations.raw(), op.out.raw(), op.count, op.width, op.kept, op.columns}, false);
}

}  // namespace glimpse::kernels::cuda
