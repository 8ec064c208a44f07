#include "glimpse/exec/ggml/nodes.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numeric>

namespace glimpse::exec {
namespace {

float* floats(ggml_tensor* tensor) {
  return static_cast<float*>(tensor->data);
}
const float* floats(const model::TensorInfo* tensor) {
  return reinterpret_cast<const float*>(tensor->data);
}

/// How far adding `d` turns `x`: 1 - cosine(x, x + d). Rows of zeros turn by nothing.
double change_of(const float* x, const float* d, std::int64_t width) {
  double xx = 0, xd = 0, dd = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    xx += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    xd += static_cast<double>(x[i]) * static_cast<double>(d[i]);
    dd += static_cast<double>(d[i]) * static_cast<double>(d[i]);
  }
  const double lengths = std::sqrt(xx * std::max(xx + 2 * xd + dd, 0.0));
  return lengths > 0 ? 1 - (xx + xd) / lengths : 0;
}

/// The three parts of a projection's rows, fused or apart.
struct QkvRows {
  const float *q, *k, *v;
  std::size_t q_stride, k_stride, v_stride;
};

QkvRows qkv_rows(const ggml_tensor* dst, std::size_t q_width, std::size_t kv_width) {
  if (dst->src[1] == nullptr) {
    const float* all = floats(dst->src[0]);
    const auto stride = static_cast<std::size_t>(dst->src[0]->ne[0]);
    return {all, all + q_width, all + q_width + kv_width, stride, stride, stride};
  }
  return {floats(dst->src[0]), floats(dst->src[1]), floats(dst->src[2]), q_width, kv_width, kv_width};
}

/// Copies one head's row with its bias, norm and rotation.
void finish_head(const float* from, const float* bias, const float* norm, const PassData& pass, std::size_t row,
                 float* to) {
  const model::Config& config = pass.model->config();
  const int dim = config.head_dim;
  if (bias != nullptr) {
    for (int i = 0; i < dim; ++i) to[i] = from[i] + bias[i];
  } else {
    std::memcpy(to, from, static_cast<std::size_t>(dim) * sizeof(float));
  }
  if (norm != nullptr) rms_norm(to, norm, dim, config.rms_epsilon, to);
  pass.rope->rotate(row, to);
}

}  // namespace

void rms_norm(const float* x, const float* weight, std::int64_t width, float epsilon, float* out) {
  constexpr std::int64_t kLanes = 8;  // a sum of one lane waits for each of its additions
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<double>(x[i + lane] * x[i + lane]);
    }
  }
  for (; i < width; ++i) lanes[0] += static_cast<double>(x[i] * x[i]);
  const double squares = std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
  const float scale = 1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(width)) + epsilon);
  for (i = 0; i < width; ++i) out[i] = x[i] * scale * weight[i];
}

void count_change(const NodeData& node, int thread, const float* x, const float* delta, std::int64_t width) {
  if (!node.attended || node.pass->changes.empty()) return;
  ChangeSum& change = node.pass->changes[static_cast<std::size_t>(thread)][static_cast<std::size_t>(node.layer)];
  change.sum += change_of(x, delta, width);
  ++change.rows;
}

void normalise_node(ggml_tensor* dst, int ith, int nth, void* data) {
  const auto& node = *static_cast<const NodeData*>(data);
  const std::int64_t width = dst->ne[0];
  float* residual = floats(dst->src[0]);
  const float* weight = floats(dst->src[1]);
  const float* delta = node.add ? floats(dst->src[2]) : nullptr;
  for (std::int64_t row = ith; row < dst->ne[1]; row += nth) {
    float* x = residual + row * width;
    if (delta != nullptr) {
      const float* d = delta + row * width;
      count_change(node, ith, x, d, width);
      for (std::int64_t i = 0; i < width; ++i) x[i] += d[i];
    }
    rms_norm(x, weight, width, node.pass->model->config().rms_epsilon, floats(dst) + row * width);
  }
}

void append_node(ggml_tensor* dst, int ith, int nth, void* data) {
  const auto& node = *static_cast<const NodeData*>(data);
  PassData& pass = *node.pass;
  const model::Config& config = pass.model->config();
  const model::LayerWeights& weights = pass.model->layers()[static_cast<std::size_t>(node.layer)];
  const auto dim = static_cast<std::size_t>(config.head_dim);
  const auto group = static_cast<std::size_t>(config.heads / config.kv_heads);
  const std::size_t q_width = static_cast<std::size_t>(config.heads) * dim;
  const QkvRows rows = qkv_rows(dst, q_width, static_cast<std::size_t>(config.kv_heads) * dim);
  const auto bias_of = [](const model::TensorInfo* tensor, std::size_t offset) {
    return tensor == nullptr ? nullptr : floats(tensor) + offset;
  };
  const float* q_norm = bias_of(weights.q_norm, 0);
  const float* k_norm = bias_of(weights.k_norm, 0);
  float* keys = pass.scratch[static_cast<std::size_t>(ith)].data();
  float* values = keys + kAppendRows * dim;

  int item = 0;
  for (std::size_t s = 0; s < pass.sequences.size(); ++s) {
    const attention::SequenceRows& sequence = pass.sequences[s];
    const int computed = std::min(sequence.rows, pass.rows - sequence.first_row);
    for (int first = 0; first < computed; first += kAppendRows) {
      const int count = std::min(kAppendRows, computed - first);
      for (int head = 0; head < config.kv_heads; ++head, ++item) {
        if (item % nth != ith) continue;
        const std::size_t kv_offset = static_cast<std::size_t>(head) * dim;
        for (int r = 0; r < count; ++r) {
          const auto row = static_cast<std::size_t>(sequence.first_row + first + r);
          for (std::size_t j = 0; j < group; ++j) {
            const std::size_t q_offset = (static_cast<std::size_t>(head) * group + j) * dim;
            finish_head(rows.q + row * rows.q_stride + q_offset, bias_of(weights.q_bias, q_offset), q_norm, pass, row,
                        floats(dst) + row * q_width + q_offset);
          }
          finish_head(rows.k + row * rows.k_stride + kv_offset, bias_of(weights.k_bias, kv_offset), k_norm, pass, row,
                      keys + static_cast<std::size_t>(r) * dim);
          const float* value = rows.v + row * rows.v_stride + kv_offset;
          const float* bias = bias_of(weights.v_bias, kv_offset);
          float* to = values + static_cast<std::size_t>(r) * dim;
          for (std::size_t i = 0; i < dim; ++i) to[i] = bias == nullptr ? value[i] : value[i] + bias[i];
        }
        pass.runner->append({node.layer, head, static_cast<int>(s), first, count, keys, values, dim});
      }
    }
  }
  if (!pass.runner->appended(node.layer, nth)) return;
  // The other threads wait for this one, at the barrier behind the node.
  const int left = narrowed(pass.rows, pass.runner->rows_wanted());
  if (left == pass.rows) return;
  pass.rows = left;
  pass.narrow(left);
}

void select_node(ggml_tensor* dst, int ith, int nth, void* data) {
  const auto& node = *static_cast<const NodeData*>(data);
  node.pass->runner->select(node.layer, floats(dst->src[0]), ith, nth);
}

void attend_node(ggml_tensor* dst, int ith, int nth, void* data) {
  const auto& node = *static_cast<const NodeData*>(data);
  node.pass->runner->attend(node.layer, floats(dst->src[0]), floats(dst), ith, nth);
}

void gather_node(ggml_tensor* dst, int ith, int nth, void* data) {
  const auto& node = *static_cast<const NodeData*>(data);
  const std::int64_t width = dst->ne[0];
  for (std::int64_t i = ith; i < dst->ne[1]; i += nth) {
    const std::int64_t row = node.pass->output_rows[static_cast<std::size_t>(i)];
    std::memcpy(floats(dst) + i * width, floats(dst->src[0]) + row * width,
                static_cast<std::size_t>(width) * sizeof(float));
  }
}

}  // namespace glimpse::exec
