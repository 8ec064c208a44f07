// How much memory this process can have at most. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace glimpse {

/// Bytes: the machine's memory with its swap, or less where a control group of the process (version 2, or version 1's
/// memory controller) allows less. None where the system does not tell. `root` is where /proc and /sys are (tests).
std::optional<std::int64_t> machine_memory(const std::filesystem::path& root = "/");

}  // namespace glimpse
