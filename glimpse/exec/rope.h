// Rotary position embedding, with the same float recurrence as ggml_rope_ext (linear, YaRN, Llama 3 factors), so that
// logits agree with what the ecosystem computes. Angles of a pass are computed once for all layers.
// The table is filled by one thread and read by many. Attention turns rows of its own by a second table, which grows to
// the longest prompt whose keys it makes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kernels/rotation.h"
#include "glimpse/model/model.h"

namespace glimpse::exec {

class RopeTable final : public kernels::Rotation {
 public:
  explicit RopeTable(const model::Rope& rope);
  /// Angles for these positions; row i of the pass sits at positions[i].
  void fill(std::span<const std::int64_t> positions);
  /// [rows, dims] cos and sin in turn, of the first rows of the last fill.
  std::span<const float> cos_sin(std::size_t rows) const {
    return {cos_sin_.data(), rows * static_cast<std::size_t>(rope_.dims)};
  }
  /// Rotates the first rope.dims values of one head in place.
  void rotate(std::size_t row, float* head) const;

  void prepare(std::int64_t positions) override;
  void turn(std::int64_t position, float* row) const override;
  void turn_back(std::int64_t position, float* row) const override;
  kernels::RotationPairs pairs() const override { return {rope_.dims, rope_.neox}; }
  std::span<const float> angles(std::int64_t first, std::int64_t last) const override {
    const auto dims = static_cast<std::size_t>(rope_.dims);
    return std::span(by_position_)
        .subspan(static_cast<std::size_t>(first) * dims, static_cast<std::size_t>(last - first) * dims);
  }

 private:
  struct Pair {
    int first, second;
  };
  Pair pair(int i) const { return rope_.neox ? Pair{i, i + rope_.dims / 2} : Pair{2 * i, 2 * i + 1}; }
  void rotate_by(const float* cos_sin, float* head) const;
  void fill_row(std::int64_t position, float* cos_sin) const;

  model::Rope rope_;
  float theta_scale_;
  float frequency_scale_;
  float corrections_[2] = {0, 0};   ///< YaRN: first and last dimension of the ramp
  std::vector<float> cos_sin_;      ///< [row, dims]: cos and sin in turn
  std::vector<float> by_position_;  ///< [position, dims] the same
};

}  // namespace glimpse::exec
