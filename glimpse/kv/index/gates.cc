#include "glimpse/kv/index/gates.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/kernels/index.h"

namespace glimpse::kv {
namespace {

constexpr int kPoolings = 3;  // max, min, mean

}  // namespace

Gates::Gates(GateWeights weights, std::unique_ptr<kernels::Rotation> of_model, std::unique_ptr<kernels::Rotation> own)
    : weights_(std::move(weights)), of_model_(std::move(of_model)), own_(std::move(own)) {
  const GateWeights& w = weights_;
  const std::size_t heads = static_cast<std::size_t>(w.layers) * static_cast<std::size_t>(w.kv_heads);
  check(w.head_dim > 0 && w.head_dim % 8 == 0 && w.head_dim <= 256, "a gate's rows come in eights, 256 at most");
  check(w.dim > 0 && w.dim % 8 == 0 && w.dim <= 512, "a gate's space comes in eights, 512 at most");
  check(w.block > 0 && w.group > 0 && w.q.size() == heads * query_bytes() &&
            w.k.size() == heads * matrix_bytes() * kPoolings,
        "a gate's matrices have its shape");
  const std::size_t norms = static_cast<std::size_t>(w.layers) * static_cast<std::size_t>(w.dim);
  check(w.q_norm.size() == w.k_norm.size() && (w.q_norm.empty() || w.q_norm.size() == norms),
        "a gate's norms have its shape");
  check(of_model_ != nullptr && (own_ != nullptr) == (w.rope_dims > 0), "a gate has its rotations");
}

void Gates::prepare(std::int64_t positions) {
  of_model_->prepare(positions);
  if (own_) own_->prepare(positions);
}

/// out += matrix [dim, d] row [d].
void Gates::add_product(const std::byte* matrix, const float* row, float* work, float* out) const {
  kernels::NodeScoreItem item;
  item.rows = matrix;
  item.type = weights_.type;
  item.width = weights_.head_dim;
  item.count = weights_.dim;
  item.queries = row;
  item.scores = work;
  kernels::score_nodes(item);
  for (int i = 0; i < weights_.dim; ++i) out[i] += work[i];
}

/// RMS norm and rotation in the gate's space.
void Gates::finish(const std::vector<float>& norm, int layer, std::int64_t position, float* row) const {
  const auto dim = static_cast<std::size_t>(weights_.dim);
  if (!norm.empty()) {
    double squares = 0;
    for (std::size_t i = 0; i < dim; ++i) squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    const double mean = squares / static_cast<double>(dim);
    const auto scale = static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(weights_.norm_epsilon)));
    const float* weight = norm.data() + static_cast<std::size_t>(layer) * dim;
    for (std::size_t i = 0; i < dim; ++i) row[i] *= scale * weight[i];
  }
  if (own_) own_->turn(position, row);
}

void Gates::key(const GateHead& head, std::int64_t first, float* keys, float* out) const {
  const auto d = static_cast<std::size_t>(weights_.head_dim);
  for (int i = 0; i < weights_.block; ++i) of_model_->turn_back(first + i, keys + static_cast<std::size_t>(i) * d);
  std::vector<float> pooled(kPoolings * d + static_cast<std::size_t>(weights_.dim));
  float* most = pooled.data();
  float* least = most + d;
  float* mean = least + d;
  const kernels::FloatRows rows{keys, weights_.block, weights_.head_dim};
  kernels::row_bounds(rows, least, most);
  kernels::row_moments(rows, mean, nullptr);
  std::fill_n(out, weights_.dim, 0.0F);
  const std::size_t gate = static_cast<std::size_t>(head.layer) * static_cast<std::size_t>(weights_.kv_heads) +
                           static_cast<std::size_t>(head.kv_head);
  const std::byte* matrix = weights_.k.data() + gate * kPoolings * matrix_bytes();
  for (std::size_t p = 0; p < kPoolings; ++p) {
    add_product(matrix + p * matrix_bytes(), pooled.data() + p * d, mean + d, out);
  }
  finish(weights_.k_norm, head.layer, first, out);
}

void Gates::query(const GateHead& head, std::int64_t position, const float* queries, float* work, float* out) const {
  const auto d = static_cast<std::size_t>(weights_.head_dim);
  std::fill_n(out, weights_.dim, 0.0F);
  const std::size_t gate = static_cast<std::size_t>(head.layer) * static_cast<std::size_t>(weights_.kv_heads) +
                           static_cast<std::size_t>(head.kv_head);
  const std::byte* matrix = weights_.q.data() + gate * query_bytes();
  for (std::size_t j = 0; j < static_cast<std::size_t>(weights_.group); ++j) {
    std::copy_n(queries + j * d, d, work);
    of_model_->turn_back(position, work);
    add_product(matrix + j * matrix_bytes(), work, work + d, out);
  }
  finish(weights_.q_norm, head.layer, position, out);
}

}  // namespace glimpse::kv
