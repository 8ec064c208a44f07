#include "glimpse/model/not_finite.h"

#include <fmt/format.h>
#include <ggml.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace glimpse::model {
namespace {

std::optional<std::string> first_not_finite(const TensorInfo& tensor) {
  const auto type = static_cast<ggml_type>(tensor.type);
  const ggml_type_traits* traits = ggml_get_type_traits(type);
  if (type != GGML_TYPE_F32 && traits->to_float == nullptr) return std::nullopt;
  const std::int64_t width = tensor.shape[0];
  const std::size_t row_bytes = ggml_row_size(type, width);
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t r = 0; r < tensor.rows(); ++r) {
    const std::byte* from = tensor.data + static_cast<std::size_t>(r) * row_bytes;
    if (type == GGML_TYPE_F32) {
      std::memcpy(row.data(), from, row_bytes);
    } else {
      traits->to_float(from, row.data(), width);
    }
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!std::isfinite(row[i])) return fmt::format("weight [{}, {}] of '{}' is {}", r, i, tensor.name, row[i]);
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> first_not_finite(const GgufFile& file) {
  for (const TensorInfo& tensor : file.tensors()) {
    if (auto found = first_not_finite(tensor)) return found;
  }
  return std::nullopt;
}

}  // namespace glimpse::model
