// How many processor cores this process may use. Any thread.
#pragma once

#include <filesystem>
#include <vector>

namespace glimpse {

/// The logical processors that the calling thread may run on (sched_getaffinity), ascending; empty where the system
/// does not tell.
std::vector<int> allowed_processors();

/// Physical cores behind the `allowed` logical processors, or less where the CPU quota of a control group (rounded up)
/// allows less. At least 1. `root` is where /proc and /sys are (tests).
int usable_cores(const std::vector<int>& allowed, const std::filesystem::path& root);
/// The same for this process on this machine.
int usable_cores();

/// The threads to start: `wanted`, or one for each usable core where it is 0. Logs a warning where more are wanted than
/// there are cores.
int thread_count(int wanted);

}  // namespace glimpse
