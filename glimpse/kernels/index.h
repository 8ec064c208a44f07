// The arithmetic of indices over keys on the CPU: summaries of a few keys, scores of summaries, and the assignment step
// of k-means. As in attention.h: views in, results out, workspace passed in; one work item a call on the calling
// thread, any thread. `ref` (kernels/ref/index_ref.h) has the same in plain loops with double accumulators.
//
// Shapes stand in brackets. g = query heads of the group, d = head dimension, a multiple of 8 up to 256.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "glimpse/kernels/views.h"

namespace glimpse::kernels {

/// K of slots [first, first + count) as floats, [count, d]. Freed slots are read as they are.
void read_keys(const KvFormat& format, const HeadView& head, std::int32_t first, std::int32_t count, float* out);

/// A few rows of floats, [count, dim], count at least 1.
struct FloatRows {
  const float* data = nullptr;
  std::int32_t count = 0;
  int dim = 0;
};
/// Elementwise min and max, [dim] each.
void row_bounds(const FloatRows& rows, float* least, float* most);
/// Mean and population variance of each column, [dim] each; `variance` may be null.
void row_moments(const FloatRows& rows, float* mean, float* variance);
/// The largest distance of a row to `centre` [dim], summed in double and rounded up: a radius that covers every row.
float row_radius(const FloatRows& rows, const float* centre);
/// Scales `row` to length 1. A row of zeros, or one that is not finite, stays as it is.
void normalise_row(float* row, int dim);

/// How the scores of a group's queries become one.
enum class NodePooling : std::uint8_t { max, mean };

/// Scores of `count` nodes, each a row of `width` values, pooled over the group:
///   scale * rows[i] . queries[j]  [+ norms[j] * radii[i]]
struct NodeScoreItem {
  const std::byte* rows = nullptr;  ///< [count, width]
  KvType type = KvType::f32;        ///< f32, f16 or bf16
  int width = 0;                    ///< a multiple of 8, at most 512
  std::int32_t count = 0;
  const float* queries = nullptr;  ///< [g, width]
  int group = 1;                   ///< g
  float scale = 1;
  NodePooling pooling = NodePooling::max;
  const float* radii = nullptr;  ///< [count], optional
  const float* norms = nullptr;  ///< [g], with `radii`
  float* scores = nullptr;       ///< out: [count]
};
void score_nodes(const NodeScoreItem& item);

/// Digests lie in tiles of so many, [tile, value, digest of the tile]: a vector then holds one value of many digests,
/// no lanes are added up, and of a minimum and a maximum a query multiplies only the one it takes.
inline constexpr int kDigestTile = 32;

/// Scores of digests [first, first + count), pooled over the group:
///   scale * sum_i queries[j, i] x_i  [+ norms[j] * radii[n]]  [+ sqrt(squares[j] . variances[n])]
/// x is the digest; with `bounds` it has a minimum and a maximum for each dimension, side by side, and x_i is the
/// maximum, or the minimum where the query is negative: the largest product within the bounds. What lies in the last
/// tile behind the last digest is read, to no effect.
struct DigestScoreItem {
  const std::byte* tiles = nullptr;  ///< [tiles, dim, 1 or 2 (bounds), kDigestTile], aligned to 64 bytes for speed
  KvType type = KvType::f32;         ///< f32, f16 or bf16
  bool bounds = false;
  int dim = 0;  ///< d
  std::int32_t first = 0, count = 0;
  const float* queries = nullptr;  ///< [g, d]
  int group = 1;                   ///< g
  float scale = 1;
  NodePooling pooling = NodePooling::max;
  const float* radii = nullptr;      ///< [tiles, kDigestTile], optional
  const float* norms = nullptr;      ///< [g], with `radii`
  const float* variances = nullptr;  ///< [tiles, d, kDigestTile], optional
  const float* squares = nullptr;    ///< [g, d], with `variances`
  float* scores = nullptr;           ///< out: [count]
};
void score_digests(const DigestScoreItem& item);

/// Rows from their factors: out[n, i] = sum_k U[positions[n], k] * basis[k, i], k from 0 to rank - 1 in one chain, so
/// that a row is the same beside whatever others.
struct FactorItem {
  const std::byte* coefficients = nullptr;  ///< U [tokens, at least rank]
  KvType type = KvType::f32;                ///< of U: f32, f16 or bf16
  std::size_t row_bytes = 0;                ///< from a row of U to the next
  std::span<const std::int32_t> positions;
  const float* basis = nullptr;  ///< [rank, dim]
  int rank = 0;
  int dim = 0;           ///< d
  float* out = nullptr;  ///< [positions, dim]
};
void multiply_factors(const FactorItem& item);

/// The assignment step of k-means by inner product: for each row the centroid of the largest product (equal products:
/// the lower one) and that product.
struct AssignItem {
  const float* rows = nullptr;  ///< [count, dim]
  std::int32_t count = 0;
  const float* centroids = nullptr;  ///< [clusters, dim]
  std::int32_t clusters = 0;         ///< at least 1
  int dim = 0;
  std::int32_t* nearest = nullptr;  ///< out: [count]
  float* products = nullptr;        ///< out: [count]
};
std::size_t assign_workspace(int dim);
void assign_rows(const AssignItem& item, std::span<std::byte> workspace);

}  // namespace glimpse::kernels
