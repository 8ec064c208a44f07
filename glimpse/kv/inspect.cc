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

std::vector<float> row_at(const Cache& cache, const kernels::HeadView& view, std::byte* plane, std::int64_t position) {
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
  const std::byte* row = view.row_of(plane, slot, format);
  std::vector<float> values(static_cast<std::size_t>(format.dim));
  float scale = 1;
  if (format.type == KvType::q8_0) {
    scale = load<float>(view.page_of(plane, slot, format) + format.scale_offset() +
                        static_cast<std::size_t>(slot % kernels::kPageTokens) * sizeof(float));
  }
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
  return values;
}

}  // namespace

std::vector<float> key_at(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t position) {
  const kernels::HeadView view = cache.view(sequence, layer, head);
  return row_at(cache, view, view.k_plane, position);
}

std::vector<float> value_at(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t position) {
  const kernels::HeadView view = cache.view(sequence, layer, head);
  return row_at(cache, view, view.v_plane, position);
}

}  // namespace glimpse::kv
