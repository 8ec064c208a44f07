// Digests of key ranges (pages, chunks): a row each, scored for all queries of a group in one pass. Owns its rows; they
// grow in the order of their ranges. Const members from any thread, the others from one at a time.
//
// min_max is stored in the cache's own type, which holds it exactly; of a q8_0 cache in bf16, rounded outward, so that
// it stays a bound. The others are f32: sphere and mean_deviation feel the rounding of 16 bits in their ranking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "glimpse/kernels/index.h"
#include "glimpse/kv/index/key_index.h"

namespace glimpse::kv {

/// The queries that choose together, as one selector's term pools them.
struct GroupQueries {
  const float* data = nullptr;  ///< [group, d]
  int group = 1;
  float scale = 1;
  kernels::NodePooling pooling = kernels::NodePooling::max;
};

/// mean_query makes one query of the group, written to the front of scratch.queries.
GroupQueries group_queries(plan::GroupPooling pooling, const IndexQuery& query, int dim, IndexScratch& scratch);

/// Floats of scratch.queries that group_queries may use; behind them there is room for others.
std::size_t mean_query_floats(int dim);

class Digests {
 public:
  /// plan::Digest, and the mean alone (landmarks).
  enum class Kind : std::uint8_t { min_max, sphere, mean_deviation, mean };

  Digests(Kind kind, int dim, double deviation_weight) : kind_(kind), dim_(dim), weight_(deviation_weight) {}
  static Kind kind_of(plan::Digest digest);

  int dim() const { return dim_; }
  std::int32_t count() const { return count_; }
  std::size_t bytes() const { return rows_.size() + (radii_.size() + variances_.size()) * sizeof(float); }
  /// What scoring `digests` of them reads.
  std::size_t read_bytes(std::size_t digests) const {
    return count_ == 0 ? 0 : bytes() / static_cast<std::size_t>(count_) * digests;
  }

  /// The digest of `tokens` keys from `first` on, behind those there are.
  void append(const KeySource& keys, std::int64_t first, std::int64_t tokens);
  /// The same instead of digest `at`.
  void replace(const KeySource& keys, std::int64_t first, std::int64_t tokens, std::int32_t at);

  void save(ByteWriter& to) const;
  /// Of a cache of `type`, `most` digests at most.
  void load(ByteReader& from, KvType type, std::int64_t most);

  /// scores[i] of digest first + i, i in [0, number).
  void score(const GroupQueries& queries, std::int32_t first, std::int32_t number, IndexScratch& scratch,
             float* scores) const;

  /// The first of the row's values as floats: min_max: [2, d]; sphere: centre; mean and mean_deviation: mean.
  std::vector<float> row(std::int32_t at) const;
  float radius(std::int32_t at) const { return radii_[static_cast<std::size_t>(at)]; }

 private:
  int width() const { return kind_ == Kind::min_max ? 2 * dim_ : dim_; }
  std::size_t row_bytes() const { return glimpse::row_bytes(type_, width()); }
  void set_type(KvType cache);
  void write(const KeySource& keys, std::int64_t first, std::int64_t tokens, std::int32_t at);
  void store_bounds(const float* bounds, bool outward, std::byte* to) const;

  Kind kind_;
  int dim_;
  double weight_;
  KvType type_ = KvType::f32;  ///< of rows_
  std::int32_t count_ = 0;
  std::vector<std::byte> rows_;   ///< [count, width]
  std::vector<float> radii_;      ///< [count], sphere
  std::vector<float> variances_;  ///< [count, d], mean_deviation
};

}  // namespace glimpse::kv
