// Quantised matrices of a model file, in the order that a GPU multiplies from (kernels/cuda/packed.h). Integers and
// scales stay what the file has. Pure; any thread.
#pragma once

#include <optional>
#include <span>

#include "glimpse/kernels/cuda/packed.h"
#include "glimpse/model/model.h"

namespace glimpse::exec::cuda {

/// How a tensor's type is packed; nothing for types that become bf16.
std::optional<kernels::cuda::Packing> packing_of(const model::TensorInfo& tensor);

/// A tensor's block rows [first, last) as block rows [at + first, at + last) of a matrix that may hold several tensors.
struct PackRows {
  const model::TensorInfo& tensor;
  kernels::cuda::PackedLayout layout;  ///< of the matrix
  std::size_t at = 0;
  std::size_t first = 0, last = 0;
  /// Block rows are eight outputs of the tensor and the same eight of this one, of the same type and shape.
  const model::TensorInfo* beside = nullptr;
};

/// `words`: the whole matrix's, [layout.words()].
void pack(const PackRows& rows, std::span<std::uint32_t> words);

}  // namespace glimpse::exec::cuda
