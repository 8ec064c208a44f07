#include "glimpse/kv/index/node_level.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "glimpse/kernels/index.h"

namespace glimpse::kv {
namespace {

float add_up(float a, float b) {
  return std::nextafter(a + b, std::numeric_limits<float>::infinity());
}

float distance_up(const float* a, const float* b, int dim) {
  return kernels::row_radius({a, 1, dim}, b);
}

}  // namespace

void NodeLevel::add(const float* centroid, std::int32_t members) {
  rows_.resize(rows_.size() + static_cast<std::size_t>(dim_));
  radii_.push_back(0);
  members_.push_back(members);
  store(count() - 1, centroid);
}

void NodeLevel::store(std::int32_t node, const float* centroid) {
  std::uint16_t* to = rows_.data() + static_cast<std::size_t>(node) * static_cast<std::size_t>(dim_);
  for (int i = 0; i < dim_; ++i) to[i] = f16_from_float(centroid[i]);
}

void NodeLevel::read(std::int32_t node, float* centroid) const {
  const std::uint16_t* from = rows_.data() + static_cast<std::size_t>(node) * static_cast<std::size_t>(dim_);
  for (int i = 0; i < dim_; ++i) centroid[i] = float_from_f16(from[i]);
}

void NodeLevel::cover(std::int32_t node, const float* point, float point_radius) {
  std::vector<float> centroid(static_cast<std::size_t>(dim_));
  read(node, centroid.data());
  float& radius = radii_[static_cast<std::size_t>(node)];
  const float distance = distance_up(point, centroid.data(), dim_);
  radius = std::max(radius, point_radius > 0 ? add_up(distance, point_radius) : distance);
}

void NodeLevel::cover(std::int32_t node, float distance) {
  float& radius = radii_[static_cast<std::size_t>(node)];
  radius = std::max(radius, distance);
}

void NodeLevel::move_towards(std::int32_t node, const float* point) {
  const auto dim = static_cast<std::size_t>(dim_);
  std::vector<float> values(3 * dim);
  float* const before = values.data();
  float* const moved = before + dim;
  float* const after = moved + dim;
  read(node, before);
  std::int32_t& members = members_[static_cast<std::size_t>(node)];
  for (std::size_t i = 0; i < dim; ++i) moved[i] = static_cast<float>(members) * before[i] + point[i];
  kernels::normalise_row(moved, dim_);
  store(node, moved);
  ++members;
  read(node, after);
  float& radius = radii_[static_cast<std::size_t>(node)];
  const float shift = distance_up(before, after, dim_);
  if (shift > 0) radius = add_up(radius, shift);
}

void NodeLevel::score(const GroupQueries& queries, const float* norms, std::int32_t first, std::int32_t number,
                      float* scores) const {
  const auto at = static_cast<std::size_t>(first);
  kernels::NodeScoreItem item;
  item.rows = reinterpret_cast<const std::byte*>(rows_.data() + at * static_cast<std::size_t>(dim_));
  item.type = KvType::f16;
  item.width = dim_;
  item.count = number;
  item.queries = queries.data;
  item.group = queries.group;
  item.scale = queries.scale;
  item.pooling = queries.pooling;
  item.radii = radii_.data() + at;
  item.norms = norms;
  item.scores = scores;
  kernels::score_nodes(item);
}

void NodeLevel::products(const float* row, float* products) const {
  kernels::NodeScoreItem item;
  item.rows = reinterpret_cast<const std::byte*>(rows_.data());
  item.type = KvType::f16;
  item.width = dim_;
  item.count = count();
  item.queries = row;
  item.scores = products;
  kernels::score_nodes(item);
}

}  // namespace glimpse::kv
