// Digests of key ranges (pages, chunks), scored for all queries of a group in one pass. Owns them, in the tiles of
// kernels::score_digests; they grow in the order of their ranges. Const members from any thread, the others from one at
// a time. Copies share what neither changes, kSharedDigests at a time: a fork of a sequence copies no digest.
//
// min_max is stored in the cache's own type, which holds it exactly; of a q8_0 cache in bf16, rounded outward, so that
// it stays a bound. The others are f32: sphere and mean_deviation feel the rounding of 16 bits in their ranking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "glimpse/base/copy_on_write.h"
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

/// Digests that copies share as one.
inline constexpr std::int32_t kSharedDigests = 8 * kernels::kDigestTile;

class Digests {
 public:
  /// plan::Digest, and the mean alone (landmarks).
  enum class Kind : std::uint8_t { min_max, sphere, mean_deviation, mean };

  Digests(Kind kind, int dim, double deviation_weight) : kind_(kind), dim_(dim), weight_(deviation_weight) {}
  static Kind kind_of(plan::Digest digest);

  Kind kind() const { return kind_; }
  int dim() const { return dim_; }
  std::int32_t count() const { return count_; }
  /// Held, in whole tiles.
  std::size_t bytes() const { return tiles() * kernels::kDigestTile * digest_bytes(); }
  /// What scoring `digests` of them reads.
  std::size_t read_bytes(std::size_t digests) const { return digests * digest_bytes(); }

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
  /// [d], of mean_deviation.
  std::vector<float> variances(std::int32_t at) const;
  float radius(std::int32_t at) const { return share(at).radii[static_cast<std::size_t>(at % kSharedDigests)]; }

 private:
  /// What a vector of these holds starts on a cache line: a value of a tile is one, or a few.
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  /// kSharedDigests of them, the last as many as there are.
  struct Share {
    std::vector<Line> lines;      ///< [tile, value, kDigestTile]; of min_max a minimum and a maximum for each dimension
    std::vector<Line> variances;  ///< [tile, d, kDigestTile] floats, mean_deviation
    std::vector<float> radii;     ///< [tile, kDigestTile], sphere
  };
  int values() const { return kind_ == Kind::min_max ? 2 * dim_ : dim_; }  ///< of one digest
  std::size_t tiles() const {
    return (static_cast<std::size_t>(count_) + kernels::kDigestTile - 1) / kernels::kDigestTile;
  }
  std::size_t tile_bytes() const { return row_bytes(type_, values()) * kernels::kDigestTile; }
  std::size_t variance_bytes() const { return kind_ == Kind::mean_deviation ? row_bytes(KvType::f32, dim_) : 0; }
  std::size_t digest_bytes() const {
    return row_bytes(type_, values()) + variance_bytes() + (kind_ == Kind::sphere ? sizeof(float) : 0);
  }
  void set_type(KvType cache);
  /// For as many digests as are counted.
  void make_room();
  const Share& share(std::int32_t at) const { return *shares_[static_cast<std::size_t>(at / kSharedDigests)]; }
  Share& own_share(std::int32_t at) { return shares_[static_cast<std::size_t>(at / kSharedDigests)].own(); }
  void write(const KeySource& keys, std::int64_t first, std::int64_t tokens, std::int32_t at);
  void store_bounds(const float* bounds, bool outward, std::int32_t at);
  /// Where value `number` of a digest lies in its share.
  std::size_t place(std::int32_t at, std::size_t number) const;

  Kind kind_;
  int dim_;
  double weight_;
  KvType type_ = KvType::f32;  ///< of Share::lines
  std::int32_t count_ = 0;
  std::vector<CopyOnWrite<Share>> shares_;
};

}  // namespace glimpse::kv
