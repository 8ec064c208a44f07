// Matrix products on a GPU. Few rows multiply the weights as they are (kernels/cuda/few_rows.h); on Hopper more than
// eight do so in tiles (wide_rows.h). Many rows are cuBLAS's, which takes quantised weights as bf16, a slice after the
// other. It is found when a device is opened and not before, so that the program starts and runs on the CPU where it is
// not installed. Inputs are bf16, sums and results f32.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "glimpse/kernels/cuda/few_rows.h"
#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/kernels/cuda/wide_rows.h"

namespace glimpse::exec::cuda {

/// The most rows that multiply weights as they are: packed, and bf16.
inline constexpr int kMostPackedRows = 3 * kernels::cuda::kPackedFewRows;
inline constexpr int kMostBf16Rows = kernels::cuda::kBf16FewRows;
/// Of products with norms inside, where they are not in tiles: of more each block of threads works out as many norms as
/// the launch between products that they save takes.
inline constexpr int kMostNormedRows = 8;
/// Of packed weights in tiles, 64 rows after the other, where cuBLAS first needs them all as bf16.
inline constexpr int kMostTiledRows = 2 * kernels::cuda::kMostWideRows;

/// Some outputs of a matrix, [outputs, inputs].
struct MatrixPart {
  int outputs = 0;
  kernels::cuda::Packed<kernels::Place::device> packed;

  bool in_rows() const { return packed.layout.packing.in_rows(); }
  /// [outputs, inputs] where it is in rows.
  kernels::cuda::DevicePointer<const kernels::cuda::Bf16> bf16() const {
    return reinterpret_cast<const kernels::cuda::Bf16*>(packed.words.raw());
  }
  /// Whether so many rows multiply it as it is.
  bool takes(int rows) const {
    return in_rows() ? rows <= kMostBf16Rows && packed.layout.inputs % 32 == 0 : rows <= kMostPackedRows;
  }
};

/// A matrix of weights, [outputs, inputs]: one part after the other.
struct Matrix {
  int outputs = 0, inputs = 0;
  std::vector<MatrixPart> parts;

  /// Whether so many rows multiply all of it as it is.
  bool takes(int rows) const {
    return std::all_of(parts.begin(), parts.end(), [rows](const MatrixPart& part) { return part.takes(rows); });
  }
};

/// Owns a handle and its workspace; borrows the stream. One thread at a time.
class Products {
 public:
  using Input = kernels::cuda::DevicePointer<const kernels::cuda::Bf16>;

  /// Throws UserError where cuBLAS is not found, with the cure, or the device's memory is short.
  explicit Products(kernels::cuda::Stream& stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Bytes that products of many rows take for packed weights as bf16.
  static std::size_t scratch_bytes();
  /// Queues out = in * weight^T: in [rows, inputs], out [rows, outputs]. Equal calls give equal bits.
  void multiply(const Matrix& weight, Input in, int rows, kernels::cuda::DevicePointer<float> out);
  /// Queues a product of weights that so many rows multiply as they are, which ends as `op` says. `op` has the pointers
  /// of all rows; weight and rows are filled in. Of a matrix of several parts it stores, [rows, outputs].
  void multiply_as(const Matrix& weight, int rows, kernels::cuda::FewRowsOp op);
  /// Whether a product of so many rows may end as FewRowsOp::End::gate.
  bool gates(const Matrix& weight, int rows) const;
  /// Whether it may divide by a norm, and whether it may add to a residual that has one: both for as many rows.
  bool divides(const Matrix& weight, int rows) const;
  bool adds(const Matrix& weight, int rows) const;

 private:
  struct Shape {
    int outputs, inputs, rows, stride;
  };
  void multiply_bf16(Input weight, Input in, const Shape& shape, float* out);
  /// Whether so many rows multiply a part in tiles.
  bool is_wide(const MatrixPart& part, int rows) const {
    return rows > kernels::cuda::kBf16FewRows &&
           rows <= (part.in_rows() ? kernels::cuda::most_wide_rows(stream_, part.packed.layout) : kMostTiledRows) &&
           kernels::cuda::has_wide_rows(stream_, part.packed.layout);
  }
  void multiply_part(const MatrixPart& part, int rows, kernels::cuda::FewRowsOp op);
  const kernels::cuda::Array<float>& wide_space();
  void multiply_packed(const MatrixPart& part, Input in, const Shape& shape, float* out);

  struct Library;
  kernels::cuda::Stream& stream_;
  std::unique_ptr<Library> library_;
  kernels::cuda::Array<float> wide_;                   ///< made by the first product that needs it
  kernels::cuda::Array<kernels::cuda::Bf16> scratch_;  ///< made by the first product that needs it
};

}  // namespace glimpse::exec::cuda
