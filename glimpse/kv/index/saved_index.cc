// Indices as bytes and back. What comes from a file is held against what an index can be before any search follows a
// number in it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/index/chunk_bounds.h"
#include "glimpse/kv/index/chunk_tree.h"
#include "glimpse/kv/index/gate_index.h"
#include "glimpse/kv/index/landmarks.h"
#include "glimpse/kv/index/low_rank_keys.h"
#include "glimpse/kv/index/page_bounds.h"
#include "glimpse/kv/index/token_clusters.h"

namespace glimpse::kv {
namespace {

/// What a tile of digests takes, and a value of one of them.
struct TileBytes {
  std::size_t tile = 0, value = 0;
};

/// From one digest's place in tiles to another's.
struct LaneCopy {
  std::int32_t from = 0, to = 0;

  void values(std::span<const std::byte> source, std::span<std::byte> target, const TileBytes& bytes) const {
    constexpr std::size_t tile = kernels::kDigestTile;
    const std::byte* read = source.data() + size(from) / tile * bytes.tile + size(from) % tile * bytes.value;
    std::byte* write = target.data() + size(to) / tile * bytes.tile + size(to) % tile * bytes.value;
    for (std::size_t done = 0; done < bytes.tile; done += tile * bytes.value) {
      std::memcpy(write + done, read + done, bytes.value);
    }
  }
};

}  // namespace

void Digests::save(ByteWriter& to) const {
  constexpr std::int32_t tile = kernels::kDigestTile;
  const std::size_t tiles = (size(count_) + size(tile) - 1) / size(tile);
  // As one piece, [tile, value, kDigestTile], 0 behind the last.
  std::vector<std::byte> lines(tiles * tile_bytes()), variances(tiles * variance_bytes() * size(tile));
  std::vector<float> radii(kind_ == Kind::sphere ? tiles * size(tile) : 0);
  for (const DigestRun& run : runs_) {
    for (std::int32_t i = 0; i < run.count; ++i) {
      const LaneCopy copy{run.first + i, run.begin + i};
      copy.values(std::as_bytes(std::span(run.tiles->lines)), lines,
                  {tile_bytes(), tile_bytes() / size(tile * values())});
      if (!variances.empty()) {
        const std::size_t bytes = variance_bytes() * size(tile);
        copy.values(std::as_bytes(std::span(run.tiles->variances)), variances, {bytes, sizeof(float)});
      }
      if (!radii.empty()) radii[size(run.begin + i)] = run.tiles->radii[size(run.first + i)];
    }
  }
  to.value(count_);
  to.values(lines);
  to.values(variances);
  to.values(radii);
}

void Digests::load(ByteReader& from, KvType type, std::int64_t most) {
  count_ = from.value<std::int32_t>(0, static_cast<std::int32_t>(most), "digests");
  if (count_ > 0) set_type(type);
  loaded_ = true;
  runs_.clear();
  for (std::int32_t begin = 0; begin < count_; begin += DigestTiles::kMost) {
    seal();
    const std::int32_t here = std::min(DigestTiles::kMost, count_ - begin);
    runs_.push_back({std::make_shared<DigestTiles>(), 0, here, begin});
    runs_.back().tiles->used = here;
    make_room(*runs_.back().tiles);
  }
  const auto take = [&](auto DigestTiles::*member, std::string_view name) {
    std::size_t all = 0;
    for (const DigestRun& run : runs_) all += std::as_bytes(std::span((*run.tiles).*member)).size();
    const auto bytes = from.exactly<std::byte>(all, name);
    std::size_t at = 0;
    for (const DigestRun& run : runs_) {
      const auto to = std::as_writable_bytes(std::span((*run.tiles).*member));
      if (!to.empty()) std::memcpy(to.data(), bytes.data() + at, to.size());
      at += to.size();
    }
  };
  take(&DigestTiles::lines, "the rows of digests");
  take(&DigestTiles::variances, "the variances of digests");
  std::size_t radii = 0;
  for (const DigestRun& run : runs_) radii += run.tiles->radii.size();
  const std::vector<float> read = from.exactly<float>(radii, "the radii of digests");
  auto next = read.begin();
  for (const DigestRun& run : runs_) {
    std::vector<float>& to = run.tiles->radii;
    std::copy_n(next, to.size(), to.begin());
    next += static_cast<std::ptrdiff_t>(to.size());
  }
}

void PageBounds::save(ByteWriter& to) const {
  digests_.save(to);
}
void PageBounds::load(ByteReader& from, const SavedIndexLimits& limits) {
  digests_.load(from, limits.type, limits.tokens / selector_.block);
}

void GateIndex::save(ByteWriter& to) const {
  to.values(*keys_);
}
void GateIndex::load(ByteReader& from, const SavedIndexLimits& limits) {
  const auto most = static_cast<std::uint64_t>(limits.tokens / selector_.block) * dim();
  keys_.own() = from.values<float>(most, "the keys of a gate");
  from.require(keys_->size() % dim() == 0, "the keys of a gate");
  for (const float key : *keys_) from.require(std::isfinite(key), "a key of a gate");
}

void Landmarks::save(ByteWriter& to) const {
  digests_.save(to);
  to.values(*cosines_);
}
void Landmarks::load(ByteReader& from, const SavedIndexLimits& limits) {
  digests_.load(from, limits.type, limits.prompt_tokens / selector_.block);
  const bool wanted = selector_.terms.front().index.outlier_chunks > 0;
  cosines_.own() = from.exactly<float>(wanted ? size(digests_.count()) : 0, "the cosines of landmarks");
  for (const float cosine : *cosines_) from.require(!std::isnan(cosine), "a cosine of landmarks");
  rank_outliers();
}

void ChunkList::save(ByteWriter& to) const {
  to.value(seen_);
  to.values(ends_);
}
void ChunkList::load(ByteReader& from, std::int64_t tokens) {
  seen_ = from.value<std::int64_t>(0, tokens, "tokens seen by chunks");
  ends_ = from.values<std::int32_t>(size(tokens), "chunks");
  std::int32_t before = 0;
  for (const std::int32_t end : ends_) {
    from.require(end > before && end <= std::int64_t{before} + kMostChunk && end <= seen_, "the end of a chunk");
    before = end;
  }
}

void ChunkBounds::save(ByteWriter& to) const {
  chunks_.save(to);
  digests_.save(to);
}
void ChunkBounds::load(ByteReader& from, const SavedIndexLimits& limits) {
  chunks_.load(from, limits.tokens);
  digests_.load(from, limits.type, chunks_.count());
  from.require(digests_.count() == chunks_.count(), "the number of digests of chunks");
}

void NodeLevel::save(ByteWriter& to) const {
  to.values(radii_);
  to.values(members_);
  to.values(rows_);
}
void NodeLevel::load(ByteReader& from, std::int64_t most) {
  radii_ = from.values<float>(size(most), "nodes");
  members_ = from.exactly<std::int32_t>(radii_.size(), "the members of nodes");
  rows_ = from.exactly<std::uint16_t>(radii_.size() * size(dim_), "the centroids of nodes");
  for (const std::int32_t members : members_) from.require(members >= 0, "the members of a node");
}

void ChunkTree::save(ByteWriter& to) const {
  to.value(static_cast<std::uint8_t>(built_));
  to.value(seen_);
  chunks_.save(to);
  nodes_->fine.save(to);
  nodes_->coarse.save(to);
  to.values(nodes_->next);
  std::vector<std::int32_t> firsts;
  for (const Members& members : nodes_->members) firsts.push_back(members.first);
  to.values(firsts);
  to.values(nodes_->last_child);
}

void ChunkTree::load(ByteReader& from, const SavedIndexLimits& limits) {
  built_ = from.flag("built");
  seen_ = from.value<std::int64_t>(0, limits.tokens, "tokens seen by a tree");
  chunks_.load(from, seen_);
  const std::int32_t count = built_ ? chunks_.count() : 0;
  Nodes& nodes = nodes_.own();
  nodes.fine.load(from, count);
  nodes.coarse.load(from, nodes.fine.count());
  nodes.next = from.exactly<std::int32_t>(size(count), "the links of chunks");
  const auto firsts = from.exactly<std::int32_t>(size(nodes.fine.count()), "the first chunks of clusters");
  nodes.last_child = from.exactly<std::int32_t>(size(nodes.coarse.count()), "the clusters of branches");
  std::int32_t before = 0;
  for (const std::int32_t last : nodes.last_child) {
    from.require(last >= before && last <= nodes.fine.count(), "a branch's last cluster");
    before = last;
  }
  from.require(before == nodes.fine.count(), "the clusters of all branches");
  from.require(count == 0 || nodes.fine.count() > 0, "chunks without a cluster");

  // Links go on only, so none goes round; each chunk is in one cluster.
  nodes.members.assign(firsts.size(), {});
  nodes.branch_tokens.assign(nodes.last_child.size(), 0);
  std::int32_t linked = 0;
  for (std::int32_t cluster = 0; cluster < nodes.fine.count(); ++cluster) {
    Members& members = nodes.members[size(cluster)];
    members.first = firsts[size(cluster)];
    std::int32_t last = -1;
    for (std::int32_t chunk = members.first; chunk != -1; chunk = nodes.next[size(chunk)]) {
      from.require(chunk > last && chunk < count && ++linked <= count, "the link of a chunk");
      members.tokens += static_cast<std::int32_t>(chunks_.end(chunk) - chunks_.begin(chunk));
      last = chunk;
    }
    members.last = last;
    nodes.branch_tokens[size(nodes.branch_of(cluster))] += members.tokens;
  }
  from.require(linked == count, "the number of chunks in clusters");
}

void TokenClusters::save(ByteWriter& to) const {
  to.value(covered_);
  to.values(content_->ends);
  to.values(content_->members);
  to.values(content_->means);
}
void TokenClusters::load(ByteReader& from, const SavedIndexLimits& limits) {
  covered_ = from.value<std::int64_t>(0, limits.tokens, "tokens in clusters");
  Content& content = content_.own();
  content.ends = from.values<std::int32_t>(size(covered_), "clusters");
  content.members = from.values<std::int32_t>(size(covered_), "the tokens of clusters");
  content.means = from.exactly<float>(content.ends.size() * size(dim_), "the means of clusters");
  std::int32_t before = 0;
  for (std::int32_t cluster = 0; cluster < clusters(); ++cluster) {
    const std::int32_t end = content.ends[size(cluster)];
    from.require(end >= before && size(end) <= content.members.size(), "the end of a cluster");
    std::int64_t last = -1;
    for (const std::int32_t token : tokens_of(cluster)) {
      from.require(token > last && token < covered_, "a token of a cluster");
      last = token;
    }
    before = end;
  }
  from.require(size(before) == content.members.size(), "the tokens of all clusters");
}

void LowRankKeys::save(ByteWriter& to) const {
  to.values(coefficients_);
  to.values(basis_);
}
LowRankKeys::LowRankKeys(ByteReader& from, const Saved& expected)
    : rank_(expected.rank),
      dim_(expected.format.dim),
      tokens_(expected.tokens),
      type_(expected.format.type == KvType::q8_0 ? KvType::bf16 : expected.format.type) {
  check(rank_ >= 1 && rank_ <= expected.heads * dim_, "a rank is at most the width of the keys");
  coefficients_ = from.exactly<std::byte>(size(tokens_) * row_bytes(rank_), "low-rank keys");
  basis_ = from.exactly<float>(size(expected.heads) * size(rank_) * size(dim_), "the basis of low-rank keys");
}

}  // namespace glimpse::kv
