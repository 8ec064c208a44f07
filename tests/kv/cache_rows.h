// Writes and checks rows of a cache whose content follows from (stamp, layer, head, position). Owns nothing;
// one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "glimpse/kv/cache.h"

namespace glimpse::kv {

struct RowName {
  std::uint64_t stamp = 0;  ///< which extend wrote it
  int layer = 0;
  int head = 0;
  std::int32_t position = 0;
};

inline std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

/// The bytes of one row, its scale at the end where the type has one.
inline std::vector<std::byte> row_content(const kernels::KvFormat& format, const RowName& row, bool value_plane) {
  std::vector<std::byte> bytes(format.read_bytes());
  std::uint64_t state = mix(row.stamp) ^ mix(static_cast<std::uint64_t>(row.layer * 1000 + row.head));
  state = mix(state ^ (static_cast<std::uint64_t>(row.position) << 1) ^ (value_plane ? 1u : 0u));
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(state)) {
    std::memcpy(&bytes[i], &state, std::min(sizeof(state), bytes.size() - i));
    state = mix(state);
  }
  return bytes;
}

inline void write_plane(const kernels::HeadView& view, std::byte* plane, std::int32_t slot,
                        const kernels::KvFormat& format, const std::vector<std::byte>& bytes) {
  std::memcpy(view.row_of(plane, slot, format), bytes.data(), format.row_bytes());
  const std::size_t scale = bytes.size() - format.row_bytes();
  const auto offset = format.scale_offset() + static_cast<std::size_t>(slot % kernels::kPageTokens) * scale;
  if (scale > 0) std::memcpy(view.page_of(plane, slot, format) + offset, &bytes[format.row_bytes()], scale);
}

inline bool plane_is(const kernels::HeadView& view, std::byte* plane, std::int32_t slot,
                     const kernels::KvFormat& format, const std::vector<std::byte>& bytes) {
  if (std::memcmp(view.row_of(plane, slot, format), bytes.data(), format.row_bytes()) != 0) return false;
  const std::size_t scale = bytes.size() - format.row_bytes();
  const auto offset = format.scale_offset() + static_cast<std::size_t>(slot % kernels::kPageTokens) * scale;
  return scale == 0 || std::memcmp(&bytes[format.row_bytes()], view.page_of(plane, slot, format) + offset, scale) == 0;
}

inline void write_row(const Cache& cache, SequenceId sequence, const RowName& row, std::int32_t slot) {
  const auto& format = cache.shape().format;
  const auto view = cache.view(sequence, row.layer, row.head);
  write_plane(view, view.k_plane, slot, format, row_content(format, row, false));
  write_plane(view, view.v_plane, slot, format, row_content(format, row, true));
}

inline bool row_is(const Cache& cache, SequenceId sequence, const RowName& row, std::int32_t slot) {
  const auto& format = cache.shape().format;
  const auto view = cache.view(sequence, row.layer, row.head);
  return plane_is(view, view.k_plane, slot, format, row_content(format, row, false)) &&
         plane_is(view, view.v_plane, slot, format, row_content(format, row, true));
}

/// extend, and rows of `stamp` written to all new slots.
inline void extend_with_rows(Cache& cache, SequenceId sequence, std::int64_t tokens, std::uint64_t stamp) {
  const std::int64_t before = cache.length(sequence);
  cache.extend(sequence, tokens);
  for (int layer = 0; layer < cache.shape().layers; ++layer) {
    for (int head = 0; head < cache.shape().kv_heads; ++head) {
      const std::int32_t first = cache.view(sequence, layer, head).slots - static_cast<std::int32_t>(tokens);
      for (std::int32_t i = 0; i < tokens; ++i) {
        write_row(cache, sequence, {stamp, layer, head, static_cast<std::int32_t>(before) + i}, first + i);
      }
    }
  }
}

}  // namespace glimpse::kv
