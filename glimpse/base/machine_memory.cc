#include "glimpse/base/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "glimpse/base/control_groups.h"

namespace glimpse {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kKilobyte = 1024;

/// MemAvailable; of a system without it (Linux before 3.14) the free memory and the page cache.
std::optional<std::int64_t> available_to_all(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::optional<std::int64_t> available, free;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kilobytes = 0;
    if (!(words >> key >> kilobytes) || kilobytes < 0) continue;
    if (key == "MemAvailable:") available = kilobytes * kKilobyte;
    if (key == "MemFree:" || key == "Cached:") free = free.value_or(0) + kilobytes * kKilobyte;
  }
  return available ? available : free;
}

/// Page cache of files, which the system drops when the group needs memory.
std::int64_t droppable(const ControlGroup& group) {
  std::ifstream file(group.folder / "memory.stat");
  // Version 1 counts the groups below only in the lines that begin with total_.
  const std::string prefix = group.version == 1 ? "total_" : "";
  std::int64_t bytes = 0;
  std::string key;
  for (std::int64_t value = 0; file >> key >> value;) {
    if (key == prefix + "active_file" || key == prefix + "inactive_file") bytes += std::max<std::int64_t>(value, 0);
  }
  return bytes;
}

/// None where the group has no limit.
std::optional<std::int64_t> left_in(const ControlGroup& group) {
  const bool first = group.version == 1;
  const auto limit = number_in(group.folder / (first ? "memory.limit_in_bytes" : "memory.max"));
  if (!limit || *limit <= 0) return std::nullopt;
  const auto used = number_in(group.folder / (first ? "memory.usage_in_bytes" : "memory.current"));
  const std::int64_t kept = std::max<std::int64_t>(used.value_or(0) - droppable(group), 0);
  return std::max<std::int64_t>(*limit - kept, 0);
}

}  // namespace

std::optional<std::int64_t> available_memory(const fs::path& root) {
  std::optional<std::int64_t> least = available_to_all(root);
  for (const ControlGroup& group : control_groups("memory", root)) {
    const auto left = left_in(group);
    if (left) least = std::min(least.value_or(*left), *left);
  }
  return least;
}

}  // namespace glimpse
