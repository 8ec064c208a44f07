// One level of a chunk tree: nodes with a centroid of length 1 and a radius that covers what lies below. Centroids are
// f16 (2 bytes a value; a unit vector's rounding is 1e-3 of it); radii are measured from the rounded centroids and
// rounded up, so that q.centroid + |q| radius stays a bound exactly. Owns its nodes; const members from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kv/index/digests.h"

namespace glimpse::kv {

class NodeLevel {
 public:
  explicit NodeLevel(int dim) : dim_(dim) {}

  std::int32_t count() const { return static_cast<std::int32_t>(radii_.size()); }
  int dim() const { return dim_; }
  std::size_t bytes() const { return rows_.size() * sizeof(std::uint16_t) + radii_.size() * (sizeof(float) + 4); }
  std::size_t read_bytes(std::size_t nodes) const {
    return nodes * (static_cast<std::size_t>(dim_) * sizeof(std::uint16_t) + sizeof(float));
  }

  /// A node of radius 0 with `members` members below.
  void add(const float* centroid, std::int32_t members);
  /// The centroid as stored, [d].
  void read(std::int32_t node, float* centroid) const;
  float radius(std::int32_t node) const { return radii_[static_cast<std::size_t>(node)]; }

  /// All nodes as they are stored: [nodes, d] f16, and [nodes].
  std::span<const std::uint16_t> rows() const { return rows_; }
  std::span<const float> radii() const { return radii_; }

  void count_member(std::int32_t node) { ++members_[static_cast<std::size_t>(node)]; }

  /// Lets the node cover a ball around `point`; its radius never shrinks.
  void cover(std::int32_t node, const float* point, float point_radius);
  /// The same of a point whose distance to the stored centroid is known, rounded up.
  void cover(std::int32_t node, float distance);
  /// Takes in a member: the centroid moves by running mean, and the radius grows by as much as it moved. `cover` it
  /// next.
  void move_towards(std::int32_t node, const float* point);

  void save(ByteWriter& to) const;
  /// `most` nodes at most.
  void load(ByteReader& from, std::int64_t most);

  /// scores[i] of node first + i: q.centroid + |q| radius, pooled over the group and scaled.
  void score(const GroupQueries& queries, const float* norms, std::int32_t first, std::int32_t number,
             float* scores) const;
  /// products[i] = row . centroid i, for all nodes.
  void products(const float* row, float* products) const;

 private:
  void store(std::int32_t node, const float* centroid);

  int dim_;
  std::vector<std::uint16_t> rows_;    ///< [nodes, d] f16
  std::vector<float> radii_;           ///< [nodes]
  std::vector<std::int32_t> members_;  ///< [nodes] weight of the running mean
};

}  // namespace glimpse::kv
