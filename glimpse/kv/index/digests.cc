#include "glimpse/kv/index/digests.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

/// The bf16 next to `value` that is not above it (not below it).
std::uint16_t bf16_toward(float value, bool up) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  auto half = static_cast<std::uint16_t>(bits >> 16);  // towards zero
  const bool away = (bits >> 31 != 0) != up;
  if ((bits & 0xffffU) != 0 && away && std::isfinite(value)) ++half;
  return half;
}

}  // namespace

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

void Digests::append(const KeySource& keys, std::int64_t first, std::int64_t tokens) {
  set_type(keys.format.type);
  const auto next = static_cast<std::size_t>(count_) + 1;
  rows_.resize(next * row_bytes());
  if (kind_ == Kind::sphere) radii_.resize(next);
  if (kind_ == Kind::mean_deviation) variances_.resize(next * static_cast<std::size_t>(dim_));
  write(keys, first, tokens, count_++);
}

void Digests::replace(const KeySource& keys, std::int64_t first, std::int64_t tokens, std::int32_t at) {
  check(at >= 0 && at < count_, "a digest is replaced where there is one");
  write(keys, first, tokens, at);
}

void Digests::write(const KeySource& keys, std::int64_t first, std::int64_t tokens, std::int32_t at) {
  const auto size = static_cast<std::size_t>(dim_);
  std::vector<float> read(static_cast<std::size_t>(tokens) * size + 2 * size);
  float* const rows = read.data() + 2 * size;
  kernels::read_keys(keys.format, *keys.head, static_cast<std::int32_t>(first), static_cast<std::int32_t>(tokens),
                     rows);
  const kernels::FloatRows view{rows, static_cast<std::int32_t>(tokens), dim_};
  std::byte* const to = rows_.data() + static_cast<std::size_t>(at) * row_bytes();
  float* const bounds = read.data();
  switch (kind_) {
    case Kind::min_max:
      kernels::row_bounds(view, bounds, bounds + size);
      store_bounds(bounds, keys.format.type == KvType::q8_0, to);
      return;
    case Kind::sphere:
      kernels::row_bounds(view, bounds, bounds + size);
      for (std::size_t i = 0; i < size; ++i) bounds[i] = 0.5F * (bounds[i] + bounds[size + i]);
      radii_[static_cast<std::size_t>(at)] = kernels::row_radius(view, bounds);
      break;
    case Kind::mean_deviation:
      kernels::row_moments(view, bounds, variances_.data() + static_cast<std::size_t>(at) * size);
      break;
    case Kind::mean:
      kernels::row_moments(view, bounds, nullptr);
      break;
  }
  std::memcpy(to, bounds, size * sizeof(float));
}

void Digests::store_bounds(const float* bounds, bool outward, std::byte* to) const {
  const auto values = static_cast<std::size_t>(width());
  for (std::size_t i = 0; i < values; ++i) {
    if (type_ == KvType::f32) {
      std::memcpy(to + 4 * i, bounds + i, sizeof(float));
      continue;
    }
    const std::uint16_t half = type_ == KvType::f16 ? f16_from_float(bounds[i])
                               : outward            ? bf16_toward(bounds[i], i >= values / 2)
                                                    : bf16_from_float(bounds[i]);
    std::memcpy(to + 2 * i, &half, sizeof half);
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
  const std::size_t needed = own + group * (2 * size + 1);
  if (scratch.queries.size() < needed) scratch.queries.resize(needed);
  const float* const given = inside ? scratch.queries.data() : queries.data;
  float* const made = scratch.queries.data() + own;
  float* const norms = made + group * 2 * size;

  const auto at = static_cast<std::size_t>(first);
  kernels::NodeScoreItem item{.rows = rows_.data() + at * row_bytes(), .type = type_, .width = width()};
  item.count = number;
  item.queries = given;
  item.group = queries.group;
  item.scale = queries.scale;
  item.pooling = queries.pooling;
  item.scores = scores;
  for (std::size_t j = 0; j < group; ++j) {
    const float* q = given + j * size;
    if (kind_ == Kind::min_max) {
      // max(q min, q max) is q min for negative q and q max for the others.
      for (std::size_t i = 0; i < size; ++i) {
        made[j * 2 * size + i] = std::min(q[i], 0.0F);
        made[j * 2 * size + size + i] = std::max(q[i], 0.0F);
      }
    } else if (kind_ == Kind::mean_deviation) {
      for (std::size_t i = 0; i < size; ++i) {
        const float weighed = static_cast<float>(weight_) * queries.scale * q[i];
        made[j * size + i] = weighed * weighed;
      }
    } else if (kind_ == Kind::sphere) {
      double squares = 0;
      for (std::size_t i = 0; i < size; ++i) squares += static_cast<double>(q[i]) * q[i];
      norms[j] = static_cast<float>(std::sqrt(squares) * queries.scale);
    }
  }
  if (kind_ == Kind::min_max) item.queries = made;
  if (kind_ == Kind::sphere) {
    item.radii = radii_.data() + at;
    item.norms = norms;
  }
  if (kind_ == Kind::mean_deviation) {
    item.variances = variances_.data() + at * size;
    item.squares = made;
  }
  kernels::score_nodes(item);
}

std::vector<float> Digests::row(std::int32_t at) const {
  std::vector<float> values(static_cast<std::size_t>(width()));
  const std::byte* from = rows_.data() + static_cast<std::size_t>(at) * row_bytes();
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    if (type_ == KvType::f32) {
      std::memcpy(&values[i], from + 4 * i, 4);
      continue;
    }
    std::memcpy(&half, from + 2 * i, 2);
    values[i] = type_ == KvType::f16 ? float_from_f16(half) : float_from_bf16(half);
  }
  return values;
}

}  // namespace glimpse::kv
