// The choice of one set from scores, on the CPU: what ops.h asks of a Choice. Space is passed in and may be used again.
// Any thread, each with its own space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kernels/ops.h"

namespace glimpse::kernels {

/// Scores of query heads of one KV head: query j's of slot i at scores[j * stride + i], and its log-sum-exp.
struct HeadScores {
  const float* scores = nullptr;
  std::size_t stride = 0;
  const float* lse = nullptr;  ///< [g]
  int group = 1;               ///< g
};

/// pooled[i] of the choice's heads: over the query heads of each, then over heads. `one` is at least as long as
/// `pooled`, and unused where there is one head.
void pool(const Choice& choice, std::span<const HeadScores> heads, std::span<float> one, std::span<float> pooled);

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

/// What a thread makes sets in. It owns its memory, which grows with the slots.
struct SelectSpace {
  std::vector<float> pooled, one;          ///< [N] of all heads of a choice, and of one of several
  std::vector<float> units;                ///< [N]
  std::vector<std::int32_t> chosen, list;  ///< [N]
  std::vector<HeadScores> heads;
  std::vector<std::byte> workspace;  ///< select_workspace(N)
  void reserve(std::size_t slots);
};

/// Makes the set of one of an operation's choices; others of it may be made by other threads.
void select_set(const SelectOp<Place::host>& op, const Choice& choice, SelectSpace& space);

}  // namespace glimpse::kernels
