// SeerAttention-R's trained gates (arXiv 2506.08889): each KV head has two small matrices that take its group's queries
// and a block's pooled keys into one space, where their product says how much attention the block will get.
//
//   q = rope_position(norm(W_q [q_1 | ... | q_g]))
//   k = rope_first(norm(W_k [max | min | mean of the block's keys]))      score = q . k / sqrt(dim)
//
// Both take values before the model's RoPE (after its q and k norms, where it has them), so what the cache and the pass
// hold is turned back first; a block's position is that of its first token. Owns weights and rotations; one is shared
// by all indices of all sequences. prepare() belongs to one thread between passes, the rest to any.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "glimpse/base/gate_weights.h"
#include "glimpse/kernels/rotation.h"

namespace glimpse::kv {

/// Which gate of them, and where.
struct GateHead {
  int layer = 0;
  int kv_head = 0;
};

class Gates {
 public:
  /// `of_model` turns rows of the model's heads, `own` those of the gate's space; null where its rope_dims are 0.
  Gates(GateWeights weights, std::unique_ptr<kernels::Rotation> of_model, std::unique_ptr<kernels::Rotation> own);

  const GateWeights& weights() const { return weights_; }
  int dim() const { return weights_.dim; }
  const kernels::Rotation& of_model() const { return *of_model_; }
  const kernels::Rotation* own() const { return own_.get(); }  ///< null: none
  /// From now on tokens at positions [0, positions) may come.
  void prepare(std::int64_t positions);

  /// The gate's key [dim] of a block: `keys` [block, d] as the cache has them, from position `first` on; overwritten.
  void key(const GateHead& head, std::int64_t first, float* keys, float* out) const;
  /// The gate's query [dim] of a token at `position`: `queries` [g, d] after RoPE. `work` holds work_floats().
  void query(const GateHead& head, std::int64_t position, const float* queries, float* work, float* out) const;
  std::size_t work_floats() const {
    return static_cast<std::size_t>(weights_.head_dim) + static_cast<std::size_t>(weights_.dim);
  }
  /// Weights that one query reads.
  std::size_t query_bytes() const { return matrix_bytes() * static_cast<std::size_t>(weights_.group); }

 private:
  std::size_t matrix_bytes() const {
    return row_bytes(weights_.type, weights_.head_dim) * static_cast<std::size_t>(weights_.dim);
  }
  void add_product(const std::byte* matrix, const float* row, float* work, float* out) const;
  void finish(const std::vector<float>& norm, int layer, std::int64_t position, float* row) const;

  GateWeights weights_;
  std::unique_ptr<kernels::Rotation> of_model_;
  std::unique_ptr<kernels::Rotation> own_;
};

}  // namespace glimpse::kv
