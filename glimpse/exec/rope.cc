#include "glimpse/exec/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace glimpse::exec {
namespace {

/// The dimension whose wave turns `rotations` times over the original context (YaRN, arXiv 2309.00071, eq. 19).
float correction_dimension(const model::Rope& rope, float rotations) {
  return static_cast<float>(rope.dims) *
         std::log(static_cast<float>(rope.original_context) / (rotations * 2 * std::numbers::pi_v<float>)) /
         (2 * std::log(rope.base));
}

}  // namespace

RopeTable::RopeTable(const model::Rope& rope)
    : rope_(rope),
      theta_scale_(std::pow(rope.base, -2.0f / static_cast<float>(rope.dims))),
      frequency_scale_(rope.scaling == model::RopeScaling::none ? 1.0f : 1.0f / rope.factor) {
  if (rope.scaling == model::RopeScaling::yarn) {
    corrections_[0] = std::max(0.0f, std::floor(correction_dimension(rope, rope.beta_fast)));
    corrections_[1] =
        std::min(static_cast<float>(rope.dims - 1), std::ceil(correction_dimension(rope, rope.beta_slow)));
  }
}

void RopeTable::fill(std::span<const std::int64_t> positions) {
  const auto dims = static_cast<std::size_t>(rope_.dims);
  if (cos_sin_.size() < positions.size() * dims) cos_sin_.resize(positions.size() * dims);
  for (std::size_t row = 0; row < positions.size(); ++row) fill_row(positions[row], cos_sin_.data() + row * dims);
}

void RopeTable::fill_row(std::int64_t position, float* cos_sin) const {
  const bool yarn = rope_.scaling == model::RopeScaling::yarn && rope_.ext_factor != 0.0f;
  float magnitude = rope_.attn_factor;
  if (yarn) magnitude *= 1.0f + 0.1f * std::log(1.0f / frequency_scale_);
  auto theta = static_cast<float>(position);
  for (int i = 0; i < rope_.dims; i += 2) {
    const float factor = rope_.frequency_factors == nullptr ? 1.0f : rope_.frequency_factors[i / 2];
    const float extrapolated = theta / factor;
    float angle = frequency_scale_ * extrapolated;
    if (yarn) {
      const float at =
          (static_cast<float>(i / 2) - corrections_[0]) / std::max(0.001f, corrections_[1] - corrections_[0]);
      const float ramp = (1.0f - std::clamp(at, 0.0f, 1.0f)) * rope_.ext_factor;
      angle = angle * (1.0f - ramp) + extrapolated * ramp;
    }
    cos_sin[i] = std::cos(angle) * magnitude;
    cos_sin[i + 1] = std::sin(angle) * magnitude;
    theta *= theta_scale_;
  }
}

void RopeTable::rotate(std::size_t row, float* head) const {
  rotate_by(cos_sin_.data() + row * static_cast<std::size_t>(rope_.dims), head);
}

void RopeTable::rotate_by(const float* cos_sin, float* head) const {
  for (int i = 0; i < rope_.dims / 2; ++i) {
    const auto [first, second] = pair(i);
    const float a = head[first];
    const float b = head[second];
    head[first] = a * cos_sin[2 * i] - b * cos_sin[2 * i + 1];
    head[second] = a * cos_sin[2 * i + 1] + b * cos_sin[2 * i];
  }
}

void RopeTable::prepare(std::int64_t positions) {
  const auto dims = static_cast<std::size_t>(rope_.dims);
  auto done = static_cast<std::int64_t>(by_position_.size() / dims);
  if (done >= positions) return;
  by_position_.resize(static_cast<std::size_t>(positions) * dims);
  for (; done < positions; ++done) fill_row(done, by_position_.data() + static_cast<std::size_t>(done) * dims);
}

void RopeTable::turn(std::int64_t position, float* row) const {
  rotate_by(by_position_.data() + static_cast<std::size_t>(position) * static_cast<std::size_t>(rope_.dims), row);
}

void RopeTable::turn_back(std::int64_t position, float* row) const {
  const float* cos_sin =
      by_position_.data() + static_cast<std::size_t>(position) * static_cast<std::size_t>(rope_.dims);
  for (int i = 0; i < rope_.dims / 2; ++i) {
    const auto [first, second] = pair(i);
    const float cosine = cos_sin[2 * i];
    const float sine = cos_sin[2 * i + 1];
    const float squares = cosine * cosine + sine * sine;  // the magnitude's square
    const float a = row[first];
    const float b = row[second];
    row[first] = (a * cosine + b * sine) / squares;
    row[second] = (b * cosine - a * sine) / squares;
  }
}

}  // namespace glimpse::exec
