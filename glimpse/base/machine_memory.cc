#include "glimpse/base/machine_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

namespace glimpse {
namespace {

namespace fs = std::filesystem;

/// The number that a file holds; none for a missing file and for "max".
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value && value > 0) return value;
  return std::nullopt;
}

std::optional<std::int64_t> physical_and_swap(const fs::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::int64_t bytes = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kilobytes = 0;
    if (!(words >> key >> kilobytes) || kilobytes < 0) continue;
    if (key == "MemTotal:" || key == "SwapTotal:") bytes += kilobytes * 1024;
  }
  if (bytes > 0) return bytes;
  return std::nullopt;
}

/// The least limit of a group and the groups above it, as far as they are to be seen from here.
std::int64_t group_limit(const fs::path& mount, const fs::path& group, const char* file) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (fs::path at = group.relative_path();; at = at.parent_path()) {
    least = std::min(least, number_in(mount / at / file).value_or(least));
    if (at.empty()) return least;
  }
}

std::int64_t group_limits(const fs::path& root) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  std::ifstream file(root / "proc/self/cgroup");  // lines of number:controllers:path
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    const fs::path group = line.substr(second + 1);
    const fs::path mounts = root / "sys/fs/cgroup";
    if (second == first + 1) least = std::min(least, group_limit(mounts, group, "memory.max"));
    for (std::string name; std::getline(controllers, name, ',');) {
      if (name != "memory") continue;
      least = std::min(least, group_limit(mounts / "memory", group, "memory.limit_in_bytes"));
    }
  }
  return least;
}

}  // namespace

std::optional<std::int64_t> machine_memory(const fs::path& root) {
  const auto machine = physical_and_swap(root);
  const std::int64_t groups = group_limits(root);
  if (groups == std::numeric_limits<std::int64_t>::max()) return machine;
  return std::min(machine.value_or(groups), groups);
}

}  // namespace glimpse
