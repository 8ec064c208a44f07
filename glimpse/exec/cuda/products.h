// Matrix products on a GPU: cuBLAS, found when a device is opened and not before, so that the program starts and runs
// on the CPU where it is not installed. Weights and inputs are bf16, sums and results f32.
#pragma once

#include <memory>

#include "glimpse/kernels/cuda/layers.h"

namespace glimpse::exec::cuda {

/// A matrix of weights, [outputs, inputs].
struct Matrix {
  kernels::cuda::DevicePointer<const kernels::cuda::Bf16> data;
  int outputs = 0, inputs = 0;
};

/// Owns a handle and its workspace; borrows the stream. One thread at a time.
class Products {
 public:
  /// Throws UserError where cuBLAS is not found, with the cure.
  explicit Products(kernels::cuda::Stream& stream);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Queues out = in * weight^T: in [rows, inputs], out [rows, outputs]. Equal calls give equal bits.
  void multiply(const Matrix& weight, kernels::cuda::DevicePointer<const kernels::cuda::Bf16> in, int rows,
                kernels::cuda::DevicePointer<float> out);

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

}  // namespace glimpse::exec::cuda
