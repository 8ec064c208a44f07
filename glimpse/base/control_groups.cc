#include "glimpse/base/control_groups.h"

#include <fstream>
#include <sstream>
#include <string>

namespace glimpse {
namespace {

namespace fs = std::filesystem;

void add_group(const fs::path& mount, const fs::path& group, int version, std::vector<ControlGroup>& groups) {
  for (fs::path at = group.relative_path();; at = at.parent_path()) {
    groups.push_back({version, mount / at});
    if (at.empty()) return;
  }
}

}  // namespace

std::vector<ControlGroup> control_groups(std::string_view controller, const fs::path& root) {
  std::vector<ControlGroup> groups;
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");  // lines of number:controllers:path
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const fs::path group = line.substr(second + 1);
    if (second == first + 1) add_group(mounts, group, 2, groups);
    std::istringstream controllers(line.substr(first + 1, second - first - 1));
    for (std::string name; std::getline(controllers, name, ',');) {
      if (name == controller) add_group(mounts / name, group, 1, groups);
    }
  }
  return groups;
}

std::optional<std::int64_t> number_in(const fs::path& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

}  // namespace glimpse
