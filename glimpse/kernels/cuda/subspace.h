// The leading directions of symmetric matrices by subspace iteration (Halko, Martinsson and Tropp, SIAM Review 2011,
// algorithm 4.4): what factors of low rank need of X^T X, without all other eigenvectors. Columns are made orthogonal
// by a Cholesky factor of their products (CholeskyQR). A column that depends on those before it becomes zero.
//
// All in double, for several matrices at a time. Memory is the device's, owned by the caller until the stream has
// passed the call. One thread at a time. The same matrices give the same bits; a number that is not finite makes the
// directions NaN. Errors: as kernels/cuda/operations.h.
#pragma once

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

inline constexpr int kMostSubspaceColumns = 256;

/// Columns that find the first `rank` directions: 64 more. After 16 turns what those directions leave of X, squared, is
/// within 0.1 % of the least that any leave, for 160 directions of 1,024 and spectra from flat to steep.
constexpr int subspace_columns(int rank) {
  return rank + 64;
}
inline constexpr int kSubspaceTurns = 16;

struct SubspaceOp {
  /// G [count, width, width], symmetric; its eigenvalues are below zero by rounding alone.
  Pointer<const double, Place::device> matrices;
  int count = 0, width = 0;
  int columns = 0;                          ///< up to width and kMostSubspaceColumns
  Pointer<double, Place::device> basis;     ///< Q [count, width, columns]
  Pointer<double, Place::device> images;    ///< [count, width, columns]
  Pointer<double, Place::device> products;  ///< [count, columns, columns]
  Pointer<double, Place::device> solved;    ///< [count, columns, columns]
};
/// Afterwards the columns of Q are at right angles, of length 1 or 0, and `products` is Q^T G Q: its
/// eigenvectors R make the directions Q R.
void find_subspace(Stream& stream, const SubspaceOp& op, int turns = kSubspaceTurns);

/// out [count, width, kept] = Q R, with `rotations` R [count, columns, kept].
struct TurnSubspaceOp {
  Pointer<const double, Place::device> basis;
  int count = 0, width = 0, columns = 0, kept = 0;
  Pointer<const double, Place::device> rotations;
  Pointer<double, Place::device> out;
};
void turn_subspace(Stream& stream, const TurnSubspaceOp& op);

}  // namespace glimpse::kernels::cuda
