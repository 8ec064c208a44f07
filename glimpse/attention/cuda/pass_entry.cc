#include "glimpse/attention/cuda/pass_entry.h"

#include <algorithm>
#include <bit>

namespace glimpse::attention::cuda {

std::int64_t length_step(std::int64_t tokens) {
  constexpr std::int64_t kLeast = 1024;
  const std::int64_t step =
      std::max(kLeast, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens))) / 8);
  return (tokens + step - 1) / step * step;
}

int first_set(const PassEntry& entry, plan::SlotId slot) {
  return entry.first_set + entry.rows.program->select(slot.layer, slot.head).first_set;
}

}  // namespace glimpse::attention::cuda
