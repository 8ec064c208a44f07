#include "glimpse/kv/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "glimpse/base/dtype.h"
#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

/// The row of a slot in a page of one plane.
void read_row(const std::byte* page, const kernels::KvFormat& format, std::size_t slot, std::span<float> values) {
  const std::byte* row = page + slot * format.row_bytes();
  float scale = 1;
  if (format.type == KvType::q8_0) scale = load<float>(page + format.scale_offset() + slot * sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (format.type) {
      case KvType::f32:
        values[i] = load<float>(row + i * 4);
        break;
      case KvType::f16:
        values[i] = float_from_f16(load<std::uint16_t>(row + i * 2));
        break;
      case KvType::bf16:
        values[i] = float_from_bf16(load<std::uint16_t>(row + i * 2));
        break;
      case KvType::q8_0:
        values[i] = scale * static_cast<float>(load<std::int8_t>(row + i));
        break;
    }
  }
}

struct Row {
  SequenceId sequence;
  int layer, head;
  std::int64_t position;
};

std::vector<float> row_at(const Cache& cache, const Row& row, Plane plane) {
  const kernels::HeadView view = cache.view(row.sequence, row.layer, row.head);
  const std::int64_t position = row.position;
  std::int32_t slot = -1;
  if (view.positions == nullptr) {
    if (position >= 0 && position < view.slots) slot = static_cast<std::int32_t>(position);
  } else if (position >= 0) {
    const auto* end = view.positions + view.slots;
    const auto* found = std::find(view.positions, end, static_cast<std::int32_t>(position));
    if (found != end) slot = static_cast<std::int32_t>(found - view.positions);
  }
  if (slot < 0) throw UserError(fmt::format("the cache holds no token {} for this head", position));

  const kernels::KvFormat& format = cache.shape().format;
  std::vector<std::byte> space;
  const std::byte* const page =
      cache.read_page(row.sequence, {row.layer, row.head, slot >> kernels::kPageShift}, plane, space);
  std::vector<float> values(static_cast<std::size_t>(format.dim));
  read_row(page, format, static_cast<std::size_t>(slot % kernels::kPageTokens), values);
  return values;
}

}  // namespace

std::vector<float> key_at(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t position) {
  return row_at(cache, {sequence, layer, head, position}, Plane::k);
}

std::vector<float> keys_of(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t tokens) {
  const kernels::HeadView view = cache.view(sequence, layer, head);
  if (view.positions != nullptr || tokens > view.slots) {
    throw UserError(fmt::format("the cache does not hold the first {} tokens for this head", tokens));
  }
  const kernels::KvFormat& format = cache.shape().format;
  const auto dim = static_cast<std::size_t>(format.dim);
  std::vector<float> keys(static_cast<std::size_t>(tokens) * dim);
  std::vector<std::byte> space;
  for (std::int64_t first = 0; first < tokens; first += kernels::kPageTokens) {
    const auto page = static_cast<std::int32_t>(first >> kernels::kPageShift);
    const std::byte* const bytes = cache.read_page(sequence, {layer, head, page}, Plane::k, space);
    const std::int64_t rows = std::min<std::int64_t>(kernels::kPageTokens, tokens - first);
    for (std::int64_t row = 0; row < rows; ++row) {
      read_row(bytes, format, static_cast<std::size_t>(row),
               std::span(keys).subspan(static_cast<std::size_t>(first + row) * dim, dim));
    }
  }
  return keys;
}

std::vector<std::int32_t> live_positions(const Cache& cache, SequenceId sequence, int layer, int head) {
  const kernels::HeadView view = cache.view(sequence, layer, head);
  std::vector<std::int32_t> positions;
  for (std::int32_t slot = 0; slot < view.slots; ++slot) {
    const std::int32_t position = view.positions == nullptr ? slot : view.positions[slot];
    if (position >= 0) positions.push_back(position);
  }
  return positions;
}

std::vector<float> value_at(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t position) {
  return row_at(cache, {sequence, layer, head, position}, Plane::v);
}

}  // namespace glimpse::kv
