// Searches of units (blocks or chunks of a head's tokens) by what stands for their keys, queued on a stream: means
// (ShadowKV, section 4), spheres (ArkVale, section 4), means and variances, bounds of any tokens, gates' keys
// (SeerAttention-R, section 2). Scores of units go where SearchOp's go. select makes sets
// of them, and search_trees() those of chunks.
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors:
// as kernels/cuda/operations.h.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// A unit's row of floats x, and what a query q scores it with.
enum class UnitKind : std::int32_t {
  mean,       ///< [w] scale q.x
  sphere,     ///< [w] scale (q.x + |q| radius)
  deviation,  ///< [2, w] mean x, variance v: scale q.x + sqrt(sum (weight scale q)^2 v)
  bounds,     ///< [2, w] least, largest: scale times the sum of q times the largest, or the least where q is negative
};

/// What one head's row asks of its units.
struct UnitSearch {
  std::int32_t row = 0, head = 0;
  std::int32_t first = 0, last = 0;  ///< units that are scored
  UnitKind kind = UnitKind::mean;
  std::int32_t width = 0;       ///< w: d, or that of a gate's space
  std::int32_t mean_query = 0;  ///< 1: the group's mean query searches, in the place of its first
  std::int32_t gate = -1;       ///< which of the gates' queries searches, in the place of the group's first; -1: none
  std::int32_t softmax = 0;     ///< 1: scores become logarithms of each query's softmax over [first, last)
  std::int32_t zeros = 0;       ///< units beside them that have a score of 0 in it
  std::int32_t marked_count = 0;
  float scale = 1, weight = 0;
  const float* rows = nullptr;   ///< [units, w or 2 w]
  const float* radii = nullptr;  ///< [units]
  const std::int32_t* marked =
      nullptr;  ///< [marked_count] units that come before any other, and have no part in softmax
};

struct UnitSearchOp {
  KvTable<Place::device> cache;
  Pointer<const float, Place::device> q;              ///< [R, H, d] after RoPE
  int group = 1;                                      ///< g
  Pointer<const UnitSearch, Place::device> searches;  ///< [count]
  int count = 0;
  std::int32_t most = 0;                             ///< units of a search, at most: launches are sized by it
  Pointer<const float, Place::device> gate_queries;  ///< [gates, kMostGateDim], or null
  ScoreTable<Place::device> out;                     ///< as SearchOp::out
};
void search_units(Stream& stream, const UnitSearchOp& op);

inline constexpr int kMostGateDim = 512;

/// The query of one gate: q = R(norm(W [q_1 | ... | q_g])), of queries before RoPE.
struct GateQuery {
  std::int32_t row = 0, head = 0;
  std::int32_t dim = 0;            ///< e, of the gate's space: a multiple of 8, at most kMostGateDim
  std::int32_t rotated = 0;        ///< first dimensions that R turns, in pairs (i, i + rotated / 2)
  float epsilon = 0;               ///< of the norm
  const float* weights = nullptr;  ///< [g, e, d]
  const float* norm = nullptr;     ///< [e]; null: none
  std::uint32_t turn = 0;          ///< where its angles begin: [turned] cosine and sine in turn, at the row's position
  std::uint32_t own_turn = 0;      ///< the same of R, [rotated]
};

struct GateQueriesOp {
  Pointer<const float, Place::device> q;  ///< [R, H, d] after RoPE
  int kv_heads = 0, group = 1, head_dim = 0;
  Pointer<const float, Place::device> angles;     ///< of all gates
  int turned = 0;                                 ///< dimensions that the model's rotation turns
  bool neox = false;                              ///< in pairs (i, i + turned / 2), else (2i, 2i + 1)
  Pointer<const GateQuery, Place::device> gates;  ///< [count]
  int count = 0;
  Pointer<float, Place::device> out;  ///< [count, kMostGateDim]
};
void gate_queries(Stream& stream, const GateQueriesOp& op);

}  // namespace glimpse::kernels::cuda
