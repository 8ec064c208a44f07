// Digests of key ranges (blocks, chunks), scored for all queries of a group in one pass: a list of runs of tiles, which
// grow in the order of their ranges. Those of full blocks hang on the cache's pages (page_digests.h) and are made only
// where the pages have none. Copies share all tiles: a fork of a sequence copies no digest, and what either side adds
// lies in tiles of its own. Const members from any thread, the others from one at a time.
//
// min_max is stored in the cache's own type, which holds it exactly; of a q8_0 cache in bf16, rounded outward, so that
// it stays a bound. The others are f32: sphere and mean_deviation feel the rounding of 16 bits in their ranking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "glimpse/kernels/index.h"
#include "glimpse/kv/index/key_index.h"
#include "glimpse/kv/page_digests.h"

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
  using Kind = DigestKind;

  Digests(Kind kind, int dim, double deviation_weight) : kind_(kind), dim_(dim), weight_(deviation_weight) {}
  Digests(const Digests& other);
  Digests& operator=(const Digests& other);
  Digests(Digests&&) noexcept = default;
  Digests& operator=(Digests&&) noexcept = default;
  static Kind kind_of(plan::Digest digest);

  Kind kind() const { return kind_; }
  int dim() const { return dim_; }
  std::int32_t count() const { return count_; }
  /// Held, in whole tiles; what others hold, too, counts.
  std::size_t bytes() const;
  /// What scoring `digests` of them reads.
  std::size_t read_bytes(std::size_t digests) const { return digests * digest_bytes(); }

  /// The digest of `tokens` keys from `first` on, behind those there are.
  void append(const KeySource& keys, std::int64_t first, std::int64_t tokens);
  /// Those of full blocks of so many tokens, up to `count` of them: of keys.digests, or made and hung there.
  void append_blocks(const KeySource& keys, int block, std::int32_t count);
  /// Blocks [first, end) of them are made anew.
  void refresh_blocks(const KeySource& keys, int block, std::int32_t first, std::int32_t end);
  /// What is appended from now on lies in tiles of its own, so that others may read what there is.
  void seal() const;
  /// Those from `at` on.
  Digests from(std::int32_t at) const;
  void drop_from(std::int32_t at);
  /// Appends digests of the same kind.
  void join(const Digests& others);

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
  float radius(std::int32_t at) const;

 private:
  using Line = DigestTiles::Line;
  int values() const { return kind_ == Kind::min_max ? 2 * dim_ : dim_; }  ///< of one digest
  std::size_t tile_bytes() const { return row_bytes(type_, values()) * kernels::kDigestTile; }
  std::size_t variance_bytes() const { return kind_ == Kind::mean_deviation ? row_bytes(KvType::f32, dim_) : 0; }
  std::size_t digest_bytes() const {
    return row_bytes(type_, values()) + variance_bytes() + (kind_ == Kind::sphere ? sizeof(float) : 0);
  }
  void set_type(KvType cache);
  /// For as many digests as are used.
  void make_room(DigestTiles& tiles) const;
  /// One of count().
  struct Place {
    DigestTiles* tiles = nullptr;
    std::int32_t at = 0;
  };
  void find(PageDigests& digests, const PageDigests::Blocks& blocks, std::int32_t count);
  std::vector<DigestRun>::const_iterator run_of(std::int32_t at) const;
  Place place_of(std::int32_t at) const;
  /// True where the last tiles take one more.
  bool is_open();
  /// The next one, in tiles that nobody else reads.
  Place add();
  void write(const KeySource& keys, std::int64_t first, std::int64_t tokens, const Place& to) const;
  void store_bounds(const float* bounds, bool outward, const Place& to) const;
  /// Where value `number` of a digest lies in its tiles.
  std::size_t value_at(std::int32_t at, std::size_t number) const;

  Kind kind_;
  int dim_;
  double weight_;
  KvType type_ = KvType::f32;  ///< of DigestTiles::lines
  std::int32_t count_ = 0;
  bool loaded_ = false;          ///< they came from a file, and are not on pages yet
  std::vector<DigestRun> runs_;  ///< the tiles of all but the last are sealed
};

}  // namespace glimpse::kv
