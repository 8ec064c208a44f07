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

Digests::Digests(const Digests& other)
    : kind_(other.kind_),
      dim_(other.dim_),
      weight_(other.weight_),
      type_(other.type_),
      count_(other.count_),
      loaded_(other.loaded_),
      runs_(other.runs_) {
  seal();
}

Digests& Digests::operator=(const Digests& other) {
  return *this = Digests(other);
}

void Digests::seal() const {
  if (!runs_.empty()) runs_.back().tiles->sealed.store(true);  // those before it are
}

std::size_t Digests::bytes() const {
  std::size_t tiles = 0;
  for (const DigestRun& run : runs_) {
    const std::int32_t end = run.first + run.count;
    tiles += static_cast<std::size_t>((end - 1) / kernels::kDigestTile - run.first / kernels::kDigestTile + 1);
  }
  return tiles * kernels::kDigestTile * digest_bytes();
}

void Digests::make_room(DigestTiles& tiles) const {
  const std::size_t wanted = (static_cast<std::size_t>(tiles.used) + kernels::kDigestTile - 1) / kernels::kDigestTile;
  if (tiles.lines.size() == wanted * tile_bytes() / sizeof(Line)) return;
  tiles.lines.resize(wanted * tile_bytes() / sizeof(Line));
  tiles.variances.resize(wanted * kernels::kDigestTile * variance_bytes() / sizeof(Line));
  if (kind_ == Kind::sphere) tiles.radii.resize(wanted * kernels::kDigestTile);
}

bool Digests::is_open() {
  if (runs_.empty()) return false;
  const DigestRun& last = runs_.back();
  DigestTiles& tiles = *last.tiles;
  if (tiles.sealed.load()) return false;
  const std::int32_t end = last.first + last.count;
  if (tiles.used > end && tiles.is_free_from(end)) tiles.used = end;  // what was dropped is nobody's
  return tiles.used == end && end < DigestTiles::kMost;
}

Digests::Place Digests::add() {
  if (!is_open()) {
    seal();
    runs_.push_back({std::make_shared<DigestTiles>(), 0, 0, count_});
  }
  DigestRun& last = runs_.back();
  ++last.tiles->used;
  make_room(*last.tiles);
  ++count_;
  return {last.tiles.get(), last.first + last.count++};
}

void Digests::append(const KeySource& keys, std::int64_t first, std::int64_t tokens) {
  set_type(keys.format.type);
  write(keys, first, tokens, add());
}

void Digests::append_blocks(const KeySource& keys, int block, std::int32_t count) {
  const bool hangs = keys.digests != nullptr && keys.head->positions == nullptr;
  if (count_ >= count && !(loaded_ && hangs)) return;
  const PageDigests::Blocks blocks{kind_, block, hangs ? keys.head->pages : nullptr};
  set_type(keys.format.type);
  if (hangs && count_ < count) find(*keys.digests, blocks, count);
  const std::int32_t found = count_;
  while (count_ < count) append(keys, std::int64_t{count_} * block, block);
  if (!hangs) return;
  keys.digests->hang(blocks, runs_, loaded_ ? 0 : found, digest_bytes());
  loaded_ = false;
}

void Digests::find(PageDigests& digests, const PageDigests::Blocks& blocks, std::int32_t count) {
  const std::size_t before = runs_.size();
  digests.find(blocks, count, runs_);
  if (runs_.empty()) return;
  count_ = runs_.back().begin + runs_.back().count;
  if (before > 0 && runs_.size() > before) runs_[before - 1].tiles->sealed.store(true);
}

void Digests::refresh_blocks(const KeySource& keys, int block, std::int32_t first, std::int32_t end) {
  const Digests behind = from(end);
  drop_from(first);
  append_blocks(keys, block, end);
  join(behind);
}

Digests Digests::from(std::int32_t at) const {
  Digests tail(kind_, dim_, weight_);
  tail.type_ = type_;
  if (at >= count_) return tail;
  for (auto run = run_of(at); run != runs_.end(); ++run) {
    const std::int32_t skipped = std::max(0, at - run->begin);
    tail.runs_.push_back({run->tiles, run->first + skipped, run->count - skipped, tail.count_});
    tail.count_ += run->count - skipped;
  }
  seal();
  return tail;
}

void Digests::drop_from(std::int32_t at) {
  while (count_ > at) {
    DigestRun& last = runs_.back();
    last.count = std::max(0, at - last.begin);
    count_ = last.begin + last.count;
    if (last.count == 0) runs_.pop_back();
  }
}

void Digests::join(const Digests& others) {
  for (DigestRun run : others.runs_) {
    seal();
    run.begin = count_;
    count_ += run.count;
    runs_.push_back(std::move(run));
  }
}

void Digests::write(const KeySource& keys, std::int64_t first, std::int64_t tokens, const Place& to) const {
  check(keys.format.dim == dim_, "an index is made for the cache's rows");
  const auto size = static_cast<std::size_t>(dim_);
  std::vector<float> read(static_cast<std::size_t>(tokens) * size + 2 * size);
  float* const rows = read.data() + 2 * size;
  kernels::read_keys(keys.format, *keys.head, static_cast<std::int32_t>(first), static_cast<std::int32_t>(tokens),
                     rows);
  const kernels::FloatRows view{rows, static_cast<std::int32_t>(tokens), dim_};
  float* const bounds = read.data();
  switch (kind_) {
    case Kind::min_max:
      kernels::row_bounds(view, bounds, bounds + size);
      store_bounds(bounds, keys.format.type == KvType::q8_0, to);
      return;
    case Kind::sphere:
      kernels::row_bounds(view, bounds, bounds + size);
      for (std::size_t i = 0; i < size; ++i) bounds[i] = 0.5F * (bounds[i] + bounds[size + i]);
      to.tiles->radii[static_cast<std::size_t>(to.at)] = kernels::row_radius(view, bounds);
      break;
    case Kind::mean_deviation:
      kernels::row_moments(view, bounds, bounds + size);
      for (std::size_t i = 0; i < size; ++i) {
        reinterpret_cast<float*>(to.tiles->variances.data())[value_at(to.at, i)] = bounds[size + i];
      }
      break;
    case Kind::mean:
      kernels::row_moments(view, bounds, nullptr);
      break;
  }
  auto* const values = reinterpret_cast<float*>(to.tiles->lines.data());
  for (std::size_t i = 0; i < size; ++i) values[value_at(to.at, i)] = bounds[i];
}

std::vector<DigestRun>::const_iterator Digests::run_of(std::int32_t at) const {
  check(at >= 0 && at < count_, "a digest is read where there is one");
  return std::upper_bound(runs_.begin(), runs_.end(), at,
                          [](std::int32_t value, const DigestRun& run) { return value < run.begin; }) -
         1;
}

Digests::Place Digests::place_of(std::int32_t at) const {
  const auto run = run_of(at);
  return {run->tiles.get(), run->first + at - run->begin};
}

std::size_t Digests::value_at(std::int32_t at, std::size_t number) const {
  constexpr std::size_t tile = kernels::kDigestTile;
  const auto digest = static_cast<std::size_t>(at);
  return (digest / tile * static_cast<std::size_t>(values()) + number) * tile + digest % tile;
}

void Digests::store_bounds(const float* bounds, bool outward, const Place& to) const {
  const auto size = static_cast<std::size_t>(dim_);
  auto* const bytes = reinterpret_cast<std::byte*>(to.tiles->lines.data());
  for (std::size_t i = 0; i < 2 * size; ++i) {
    const bool most = i >= size;
    const std::size_t at = value_at(to.at, most ? 2 * (i - size) + 1 : 2 * i);
    if (type_ == KvType::f32) {
      std::memcpy(bytes + 4 * at, bounds + i, sizeof(float));
      continue;
    }
    const std::uint16_t half = type_ == KvType::f16 ? f16_from_float(bounds[i])
                               : outward            ? kernels::bf16_toward(bounds[i], most)
                                                    : bf16_from_float(bounds[i]);
    std::memcpy(bytes + 2 * at, &half, sizeof half);
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
  auto run = number > 0 ? run_of(first) : runs_.end();
  for (std::int32_t done = 0; done < number; done += item.count, ++run) {
    const std::int32_t before = first + done - run->begin;  // of the run
    item.tiles = reinterpret_cast<const std::byte*>(run->tiles->lines.data());
    if (kind_ == Kind::mean_deviation) item.variances = reinterpret_cast<const float*>(run->tiles->variances.data());
    if (kind_ == Kind::sphere) item.radii = run->tiles->radii.data();
    item.first = run->first + before;
    item.count = std::min(number - done, run->count - before);
    item.scores = scores + done;
    kernels::score_digests(item);
  }
}

std::vector<float> Digests::variances(std::int32_t at) const {
  const Place from = place_of(at);
  std::vector<float> found(static_cast<std::size_t>(dim_));
  const auto* const values = reinterpret_cast<const float*>(from.tiles->variances.data());
  for (std::size_t i = 0; i < found.size(); ++i) found[i] = values[value_at(from.at, i)];
  return found;
}

float Digests::radius(std::int32_t at) const {
  const Place from = place_of(at);
  return from.tiles->radii[static_cast<std::size_t>(from.at)];
}

std::vector<float> Digests::row(std::int32_t at) const {
  const Place place = place_of(at);
  std::vector<float> found(static_cast<std::size_t>(values()));
  const auto size = static_cast<std::size_t>(dim_);
  const auto* const bytes = reinterpret_cast<const std::byte*>(place.tiles->lines.data());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool both = kind_ == Kind::min_max;
    const std::size_t from = value_at(place.at, both ? (i < size ? 2 * i : 2 * (i - size) + 1) : i);
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
