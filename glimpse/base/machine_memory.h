// How much memory this process can still have. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace glimpse {

/// Bytes that can be had without swapping: what the system says is available (MemAvailable), or less where a control
/// group of the process leaves less. A group leaves its limit minus its usage; page cache that can be dropped does not
/// count as usage. Never negative. None where the system does not tell. `root` is where /proc and /sys are (tests).
std::optional<std::int64_t> available_memory(const std::filesystem::path& root = "/");

}  // namespace glimpse
