#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "glimpse/exec/ggml/nodes.h"

namespace glimpse::exec {
namespace {

/// Weights are read once, so they come from memory: those so far ahead are asked for. Rows with more bytes are not: the
/// processor finds their order by itself, and asking for a long row at once stops it.
constexpr std::size_t kAhead = 4096, kNarrow = 2304;
/// Each thread has outputs of its own. One in so many is left for whoever is done first, in shares of so many bytes:
/// cores of a shared machine do not run equally fast.
constexpr std::int64_t kLeft = 4;
constexpr std::size_t kShareBytes = 16384;

const ggml_type_traits_cpu& traits_of(const ggml_tensor* weight) {
  return *ggml_get_type_traits_cpu(weight->type);
}

/// Rows as the weight's dot product takes them.
struct Inputs {
  const std::byte* data;
  std::size_t stride;
  std::int64_t rows;
};

/// Bytes of a converted row, in whole floats.
std::size_t converted_bytes(const ggml_tensor* weight) {
  const std::size_t bytes = ggml_row_size(traits_of(weight).vec_dot_type, weight->ne[0]);
  return (bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}

/// Each thread converts all rows for itself: a barrier costs more.
Inputs converted(const ggml_tensor* weight, const float* rows, std::size_t stride, std::int64_t count,
                 std::byte* space) {
  const ggml_type type = traits_of(weight).vec_dot_type;
  if (type == GGML_TYPE_F32) return {reinterpret_cast<const std::byte*>(rows), stride * sizeof(float), count};
  const std::size_t bytes = converted_bytes(weight);
  const ggml_from_float_t convert = ggml_get_type_traits_cpu(type)->from_float;
  for (std::int64_t row = 0; row < count; ++row) {
    const auto at = static_cast<std::size_t>(row);
    convert(rows + at * stride, space + at * bytes, weight->ne[0]);
  }
  return {space, bytes, count};
}

void multiply_outputs(const ggml_tensor* weight, const Inputs& inputs, std::int64_t begin, std::int64_t end,
                      float* out) {
  const ggml_vec_dot_t dot = traits_of(weight).vec_dot;
  const std::size_t bytes = weight->nb[1], ahead = bytes <= kNarrow ? bytes : 0;
  const auto* matrix = static_cast<const std::byte*>(weight->data);
  for (std::int64_t i = begin; i < end; ++i) {
    const std::byte* row = matrix + static_cast<std::size_t>(i) * bytes;
    for (std::size_t line = 0; line < ahead; line += 64) __builtin_prefetch(row + kAhead + line);
    for (std::int64_t input = 0; input < inputs.rows; ++input) {
      dot(static_cast<int>(weight->ne[0]), out + input * weight->ne[1] + i, 0, row, 0,
          inputs.data + static_cast<std::size_t>(input) * inputs.stride, 0, 1);
    }
  }
}

/// The next share of a node's run that nobody has. `taken`: the run, and how many shares of it are taken.
std::int64_t next_share(std::uint64_t& taken, std::uint32_t run) {
  std::atomic_ref<std::uint64_t> place(taken);
  std::uint64_t old = place.load(std::memory_order_relaxed), next = 0;
  do {
    next = old >> 32 == run ? old + 1 : (std::uint64_t{run} << 32) + 1;
  } while (!place.compare_exchange_weak(old, next, std::memory_order_relaxed));
  return static_cast<std::int64_t>(next & 0xffffffff) - 1;
}

/// What one thread does of a product.
void multiply(const ggml_tensor* weight, const Inputs& inputs, NodeData& node, int ith, int nth, float* out) {
  const std::int64_t outputs = weight->ne[1], left = nth == 1 ? 0 : outputs / kLeft, own = outputs - left;
  multiply_outputs(weight, inputs, own * ith / nth, own * (ith + 1) / nth, out);
  if (left == 0) return;
  const auto share = std::max<std::int64_t>(1, static_cast<std::int64_t>(kShareBytes / weight->nb[1]));
  for (std::int64_t begin = own; begin < outputs;) {
    begin = own + next_share(node.shares, node.pass->run) * share;
    multiply_outputs(weight, inputs, begin, std::min(begin + share, outputs), out);
  }
}

}  // namespace

bool multiplies_few_rows(const ggml_tensor* weight, std::int64_t rows) {
  return rows <= kFewRows && weight->buffer == nullptr;
}

std::size_t few_rows_scratch(const ggml_tensor* weight) {
  return kFewRows * (static_cast<std::size_t>(weight->ne[0]) * sizeof(float) + converted_bytes(weight));
}

void few_rows_node(ggml_tensor* dst, int ith, int nth, void* data) {
  auto& node = *static_cast<NodeData*>(data);
  const ggml_tensor *input = dst->src[0], *weight = dst->src[1];
  std::vector<std::byte>& scratch = node.pass->products[static_cast<std::size_t>(ith)];
  const Inputs inputs = converted(weight, static_cast<const float*>(input->data), input->nb[1] / sizeof(float),
                                  input->ne[1], scratch.data());
  multiply(weight, inputs, node, ith, nth, static_cast<float*>(dst->data));
}

void normalised_few_rows_node(ggml_tensor* dst, int ith, int nth, void* data) {
  auto& node = *static_cast<NodeData*>(data);
  const ggml_tensor *residual = dst->src[0], *weight = dst->src[1];
  const auto* norm = static_cast<const float*>(dst->src[2]->data);
  const auto* delta = node.add ? static_cast<const float*>(dst->src[3]->data) : nullptr;
  float* sum = ith == 0 && node.add && dst->src[4] != nullptr ? static_cast<float*>(dst->src[4]->data) : nullptr;
  const auto width = static_cast<std::size_t>(residual->ne[0]);
  std::vector<std::byte>& scratch = node.pass->products[static_cast<std::size_t>(ith)];
  auto* rows = reinterpret_cast<float*>(scratch.data());
  for (std::int64_t i = 0; i < residual->ne[1]; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * width;
    const float* from = static_cast<const float*>(residual->data) + at;
    float* x = rows + at;
    if (delta != nullptr) {
      if (ith == 0) count_change(node, 0, from, delta + at, residual->ne[0]);
      for (std::size_t j = 0; j < width; ++j) x[j] = from[j] + delta[at + j];
      if (sum != nullptr) std::memcpy(sum + at, x, width * sizeof(float));
      from = x;
    }
    rms_norm(from, norm, residual->ne[0], node.pass->model->config().rms_epsilon, x);
  }
  const std::size_t normalised = kFewRows * width * sizeof(float);
  const Inputs inputs = converted(weight, rows, width, residual->ne[1], scratch.data() + normalised);
  multiply(weight, inputs, node, ith, nth, static_cast<float*>(dst->data));
}

}  // namespace glimpse::exec
