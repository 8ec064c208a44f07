// What the reference kernels share: a stored row as doubles. Any thread.
#pragma once

#include <vector>

#include "glimpse/kernels/views.h"

namespace glimpse::kernels::ref {

/// The row of a slot in a plane (head.k_plane or head.v_plane).
std::vector<double> read_row(const KvFormat& format, const HeadView& head, std::byte* plane, std::int32_t slot);

inline bool freed(const HeadView& head, std::int32_t slot) {
  return head.positions != nullptr && head.positions[slot] < 0;
}

inline double dot(const float* query, const std::vector<double>& key) {
  double sum = 0;
  for (std::size_t i = 0; i < key.size(); ++i) sum += static_cast<double>(query[i]) * key[i];
  return sum;
}

}  // namespace glimpse::kernels::ref
