// Options that users of llama.cpp's programs type out of habit: what glimpse has instead, one sentence each. Constants;
// any thread.
#pragma once

#include <span>
#include <string_view>

namespace glimpse::cli {

struct Habit {
  std::string_view flags;   ///< "-ngl,--gpu-layers"
  std::string_view answer;  ///< what glimpse has instead, or why nothing is needed, and the cure
};

std::span<const Habit> habits();

/// The habit that has this flag, or none.
const Habit* find_habit(std::string_view flag);

}  // namespace glimpse::cli
