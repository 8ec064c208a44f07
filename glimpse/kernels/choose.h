// The choice of one set from pooled scores, on the CPU: what ops.h asks of a Choice behind its pooling. No allocation;
// space is passed in and may be used again. Any thread, each with its own space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "glimpse/kernels/ops.h"

namespace glimpse::kernels {

/// What choose needs beside the scores of `slots` slots.
struct ChooseSpace {
  std::span<float> units;          ///< [ceil(slots / block)]; unused where the block is one slot
  std::span<std::int32_t> chosen;  ///< [slots]
  std::span<std::byte> workspace;  ///< select_workspace(slots) bytes
};

/// Writes the set's slots to `out`, ascending, and returns how many; `out` has room for pooled.size(). `pooled` is
/// overwritten.
std::size_t choose(const Choice& choice, std::span<float> pooled, const ChooseSpace& space, std::int32_t* out);

/// The same where each unit has a value already (Choice::by_unit): [ceil(slots / block)], overwritten.
std::size_t choose_units(const Choice& choice, std::span<float> units, std::size_t slots, const ChooseSpace& space,
                         std::int32_t* out);

}  // namespace glimpse::kernels
