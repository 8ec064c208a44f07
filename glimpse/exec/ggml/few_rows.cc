#include <ggml-cpu.h>
#include <ggml.h>

#include "glimpse/exec/ggml/nodes.h"

namespace glimpse::exec {

bool multiplies_few_rows(const ggml_tensor* weight, std::int64_t rows) {
  return rows >= 2 && rows <= kFewRows && weight->buffer == nullptr;
}

std::size_t few_rows_scratch(const ggml_tensor* weight) {
  return kFewRows * ggml_row_size(ggml_get_type_traits_cpu(weight->type)->vec_dot_type, weight->ne[0]);
}

void few_rows_node(ggml_tensor* dst, int ith, int nth, void* data) {
  const auto& node = *static_cast<const NodeData*>(data);
  const ggml_tensor* input = dst->src[0];
  const ggml_tensor* weight = dst->src[1];
  const ggml_type_traits_cpu* traits = ggml_get_type_traits_cpu(weight->type);
  const std::int64_t width = weight->ne[0], outputs = weight->ne[1], rows = input->ne[1];
  const auto* from = static_cast<const std::byte*>(input->data);
  std::size_t stride = input->nb[1];
  if (traits->vec_dot_type != GGML_TYPE_F32) {  // each thread for itself: a barrier costs more
    std::vector<std::byte>& scratch = node.pass->products[static_cast<std::size_t>(ith)];
    const std::size_t bytes = ggml_row_size(traits->vec_dot_type, width);
    const ggml_from_float_t convert = ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<std::size_t>(row);
      convert(reinterpret_cast<const float*>(from + at * stride), scratch.data() + at * bytes, width);
    }
    from = scratch.data();
    stride = bytes;
  }
  const auto* matrix = static_cast<const std::byte*>(weight->data);
  auto* out = static_cast<float*>(dst->data);
  for (std::int64_t i = outputs * ith / nth; i < outputs * (ith + 1) / nth; ++i) {
    for (std::int64_t row = 0; row < rows; ++row) {
      traits->vec_dot(static_cast<int>(width), out + row * outputs + i, 0,
                      matrix + static_cast<std::size_t>(i) * weight->nb[1], 0,
                      from + static_cast<std::size_t>(row) * stride, 0, 1);
    }
  }
}

}  // namespace glimpse::exec
