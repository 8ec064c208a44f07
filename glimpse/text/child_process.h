// Runs code that may loop, grow, recurse or crash without end in a child process, and gives back the bytes that it
// answers. Nothing is left of the child when a call returns. Any thread may call, several at once.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "glimpse/base/sanitizers.h"

namespace glimpse::text {

struct ChildLimits {
  std::chrono::milliseconds time;
  std::size_t memory;  ///< bytes beside those that it shares with this process
};

/// What ended the child: its answer, a limit that it exceeded, or a fault.
enum class ChildEnd : std::uint8_t { answer, time, memory, stack, crash };

struct ChildAnswer {
  ChildEnd end = ChildEnd::crash;
  std::string bytes;  ///< of ChildEnd::answer
};

/// The stack of the child: what bounds the depth of recursion.
constexpr std::size_t kChildStack = std::size_t{16} << 20;

/// The most children that one call starts: another when the last may have waited until its time was up. A lock that
/// another thread held at the fork is never freed in the child. The C library frees its allocator's, not its time
/// zone's; a sanitizer's allocator frees none, so that there one child in a hundred stands still.
constexpr int kChildTries = kSanitized ? 8 : 2;

/// The child is a copy of this process with one thread and no open file but its way to answer. `work` may allocate; it
/// must not log, nor wait for what another thread may hold. Throws UserError when the system gives no process.
ChildAnswer run_in_child(const std::function<std::string()>& work, const ChildLimits& limits);

}  // namespace glimpse::text
