#include "glimpse/kv/index/digests.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "glimpse/base/error.h"
#include "glimpse/kernels/tables.h"

namespace glimpse::kv {
std::size_t mean_query_floats(int dim) {
  return static_cast<std::size_t>(dim);
}

GroupQueries group_queries(plan::GroupPooling pooling, const IndexQuery& query, int dim, IndexScratch& scratch) {
  check(query.group == 1 || pooling != plan::GroupPooling::none, "without pooling each query searches for itself");
  const bool mean = pooling == plan::GroupPooling::mean_score;
  GroupQueries queries{query.queries, query.group, query.scale,
                       mean ? kernels::NodePooling::mean : kernels::NodePooling::max};
  if (pooling != plan::GroupPooling::mean_query || query.group == 1) return queries;
  const auto size = static_cast<std::size_t>(dim);
  if (scratch.queries.size() < size) scratch.queries.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    float sum = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(query.group); ++j) sum += query.queries[j * size + i];
    scratch.queries[i] = sum / static_cast<float>(query.group);
  }
  queries.data = scratch.queries.data();
  queries.group = 1;
  return queries;
}

Digests::Kind Digests::kind_of(plan::Digest digest) {
  switch (digest) {
    case plan::Digest::min_max:
      return Kind::min_max;
    case plan::Digest::sphere:
      return Kind::sphere;
    case plan::Digest::mean_deviation:
      return Kind::mean_deviation;
  }
  return Kind::min_max;
}

void Digests::set_type(KvType cache) {
  if (kind_ == Kind::min_max) type_ = cache == KvType::q8_0 ? KvType::bf16 : cache;
}

void Digests::make_room() {
  constexpr std::size_t most = kSharedDigests / kernels::kDigestTile;
  const std::size_t wanted = tiles();
  std::size_t i = shares_.empty() ? 0 : shares_.size() - 1;  // those before it are full
  shares_.resize((wanted + most - 1) / most);
  for (; i < shares_.size(); ++i) {
    const std::size_t here = std::min(most, wanted - i * most);
    if (shares_[i]->lines.size() == here * tile_bytes() / sizeof(Line)) continue;
    Share& share = shares_[i].own();
    share.lines.resize(here * tile_bytes() / sizeof(Line));
    share.variances.resize(here * kernels::kDigestTile * variance_bytes() / sizeof(Line));
    if (kind_ == Kind::sphere) share.radii.resize(here * kernels::kDigestTile);
  }
}

void Digests::append(const KeySource& keys, std::int64_t first, std::int64_t tokens) {
  set_type(keys.format.type);
  const std::int32_t at = count_++;
  make_room();
  write(keys, first, tokens, at);
}

void Digests::replace(const KeySource& keys, std::int64_t first, std::int64_t tokens, std::int32_t at) {
  check(at >= 0 && at < count_, "a digest is replaced where there is one");
  write(keys, first, tokens, at);
}

void Digests::write(const KeySource& keys, std::int64_t first, std::int64_t tokens, std::int32_t at) {
  check(keys.format.dim == dim_, "an index is made for the cache's rows");
  const auto size = static_cast<std::size_t>(dim_);
  std::vector<float> read(static_cast<std::size_t>(tokens) * size + 2 * size);
  float* const rows = read.data() + 2 * size;
  kernels::read_keys(keys.format, *keys.head, static_cast<std::int32_t>(first), static_cast<std::int32_t>(tokens),
                     rows);
  const kernels::FloatRows view{rows, static_cast<std::int32_t>(tokens), dim_};
  float* const bounds = read.data();
  Share& share = own_share(at);
  switch (kind_) {
    case Kind::min_max:
      kernels::row_bounds(view, bounds, bounds + size);
      store_bounds(bounds, keys.format.type == KvType::q8_0, at);
      return;
    case Kind::sphere:
      kernels::row_bounds(view, bounds, bounds + size);
      for (std::size_t i = 0; i < size; ++i) bounds[i] = 0.5F * (bounds[i] + bounds[size + i]);
      share.radii[static_cast<std::size_t>(at % kSharedDigests)] = kernels::row_radius(view, bounds);
      break;
    case Kind::mean_deviation:
      kernels::row_moments(view, bounds, bounds + size);
      for (std::size_t i = 0; i < size; ++i) {
        reinterpret_cast<float*>(share.variances.data())[place(at, i)] = bounds[size + i];
      }
      break;
    case Kind::mean:
      kernels::row_moments(view, bounds, nullptr);
      break;
  }
  auto* const values = reinterpret_cast<float*>(share.lines.data());
  for (std::size_t i = 0; i < size; ++i) values[place(at, i)] = bounds[i];
}

std::size_t Digests::place(std::int32_t at, std::size_t number) const {
  constexpr std::size_t tile = kernels::kDigestTile;
  const auto digest = static_cast<std::size_t>(at % kSharedDigests);
  return (digest / tile * static_cast<std::size_t>(values()) + number) * tile + digest % tile;
}

void Digests::store_bounds(const float* bounds, bool outward, std::int32_t at) {
  const auto size = static_cast<std::size_t>(dim_);
  auto* const bytes = reinterpret_cast<std::byte*>(own_share(at).lines.data());
  for (std::size_t i = 0; i < 2 * size; ++i) {
    const bool most = i >= size;
    const std::size_t to = place(at, most ? 2 * (i - size) + 1 : 2 * i);
    if (type_ == KvType::f32) {
      std::memcpy(bytes + 4 * to, bounds + i, sizeof(float));
      continue;
    }
    const std::uint16_t half = type_ == KvType::f16 ? f16_from_float(bounds[i])
                               : outward            ? kernels::bf16_toward(bounds[i], most)
                                                    : bf16_from_float(bounds[i]);
    std::memcpy(bytes + 2 * to, &half, sizeof half);
  }
}

void Digests::score(const GroupQueries& queries, std::int32_t first, std::int32_t number, IndexScratch& scratch,
                    float* scores) const {
  check(first >= 0 && number >= 0 && first + number <= count_, "digests are scored where there are some");
  const auto size = static_cast<std::size_t>(dim_);
  const auto group = static_cast<std::size_t>(queries.group);
  const std::size_t own = mean_query_floats(dim_);
  // What group_queries wrote lies in front, and must not move.
  const bool inside = queries.data == scratch.queries.data();
  const std::size_t needed = own + group * (size + 1);
  if (scratch.queries.size() < needed) scratch.queries.resize(needed);
  const float* const given = inside ? scratch.queries.data() : queries.data;
  float* const squares = scratch.queries.data() + own;
  float* const norms = squares + group * size;

  kernels::DigestScoreItem item{.type = type_};
  item.bounds = kind_ == Kind::min_max;
  item.dim = dim_;
  item.queries = given;
  item.group = queries.group;
  item.scale = queries.scale;
  item.pooling = queries.pooling;
  if (kind_ == Kind::mean_deviation) {
    for (std::size_t i = 0; i < group * size; ++i) {
      const float weighed = static_cast<float>(weight_) * queries.scale * given[i];
      squares[i] = weighed * weighed;
    }
    item.squares = squares;
  }
  if (kind_ == Kind::sphere) {
    for (std::size_t j = 0; j < group; ++j) {
      double sum = 0;
      for (std::size_t i = 0; i < size; ++i) sum += static_cast<double>(given[j * size + i]) * given[j * size + i];
      norms[j] = static_cast<float>(std::sqrt(sum) * queries.scale);
    }
    item.norms = norms;
  }
  for (std::int32_t done = 0; done < number; done += item.count) {
    const Share& from = share(first + done);
    item.tiles = reinterpret_cast<const std::byte*>(from.lines.data());
    if (kind_ == Kind::mean_deviation) item.variances = reinterpret_cast<const float*>(from.variances.data());
    if (kind_ == Kind::sphere) item.radii = from.radii.data();
    item.first = (first + done) % kSharedDigests;
    item.count = std::min(number - done, kSharedDigests - item.first);
    item.scores = scores + done;
    kernels::score_digests(item);
  }
}

std::vector<float> Digests::variances(std::int32_t at) const {
  std::vector<float> found(static_cast<std::size_t>(dim_));
  const auto* const values = reinterpret_cast<const float*>(share(at).variances.data());
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = values[place(at, i)];
  return found;
}

std::vector<float> Digests::row(std::int32_t at) const {
  std::vector<float> found(static_cast<std::size_t>(values()));
  const auto size = static_cast<std::size_t>(dim_);
  const auto* const bytes = reinterpret_cast<const std::byte*>(share(at).lines.data());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool both = kind_ == Kind::min_max;
    const std::size_t from = place(at, both ? (i < size ? 2 * i : 2 * (i - size) + 1) : i);
    std::uint16_t half = 0;
    if (type_ == KvType::f32) {
      std::memcpy(&found[i], bytes + 4 * from, 4);
      continue;
    }
    std::memcpy(&half, bytes + 2 * from, 2);
    found[i] = type_ == KvType::f16 ? float_from_f16(half) : float_from_bf16(half);
  }
  return found;
}

}  // namespace glimpse::kv
