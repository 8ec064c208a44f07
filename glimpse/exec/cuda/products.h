// Matrix products on a GPU. Quantised weights are multiplied as they are by few rows (kernels/cuda/few_rows.h), and as
// bf16, a slice after the other, by many. bf16 weights are cuBLAS's, which is found when a device is opened and not
// before, so that the program starts and runs on the CPU where it is not installed. Inputs are bf16, sums and results
// f32.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "glimpse/kernels/cuda/few_rows.h"
#include "glimpse/kernels/cuda/layers.h"

namespace glimpse::exec::cuda {

/// Some outputs of a matrix, [outputs, inputs]: packed, or bf16.
struct MatrixPart {
  int outputs = 0;
  kernels::cuda::Packed<kernels::Place::device> packed;  ///< null words: `data` has them
  kernels::cuda::DevicePointer<const kernels::cuda::Bf16> data;
};

/// A matrix of weights, [outputs, inputs]: one part after the other.
struct Matrix {
  int outputs = 0, inputs = 0;
  std::vector<MatrixPart> parts;

  bool quantised() const {
    return std::all_of(parts.begin(), parts.end(), [](const MatrixPart& part) { return bool(part.packed.words); });
  }
};

/// The most rows that quantised weights are multiplied by as they are.
inline constexpr int kMostPackedRows = 3 * kernels::cuda::kPackedFewRows;

/// Owns a handle and its workspace; borrows the stream. One thread at a time.
class Products {
 public:
  using Input = kernels::cuda::DevicePointer<const kernels::cuda::Bf16>;

  /// Throws UserError where cuBLAS is not found, with the cure, or the device's memory is short.
  explicit Products(kernels::cuda::Stream& stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Bytes that products with more rows than kMostPackedRows take for weights as bf16.
  static std::size_t scratch_bytes();
  /// Queues out = in * weight^T: in [rows, inputs], out [rows, outputs]. Equal calls give equal bits.
  void multiply(const Matrix& weight, Input in, int rows, kernels::cuda::DevicePointer<float> out);
  /// Queues a product of quantised weights and up to kMostPackedRows rows that ends as `op` says. `op` has the pointers
  /// of all rows; weight and rows are filled in.
  void multiply_few(const MatrixPart& weight, int rows, kernels::cuda::FewRowsOp op);
  /// Likewise of a whole matrix, [rows, outputs], of which all parts are quantised.
  void multiply_few(const Matrix& weight, int rows, const kernels::cuda::FewRowsOp& op);

 private:
  struct Shape {
    int outputs, inputs, rows, stride;
  };
  void multiply_bf16(Input weight, Input in, const Shape& shape, float* out);
  void multiply_packed(const MatrixPart& part, Input in, const Shape& shape, float* out);

  struct Library;
  kernels::cuda::Stream& stream_;
  std::unique_ptr<Library> library_;
  kernels::cuda::Array<kernels::cuda::Bf16> scratch_;  ///< made by the first product that needs it
};

}  // namespace glimpse::exec::cuda
