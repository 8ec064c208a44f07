// Where the limits of this process's control groups are to be read. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

namespace glimpse {

/// One group that limits the process. The files' names follow from the version.
struct ControlGroup {
  int version = 2;
  std::filesystem::path folder;
};

/// The groups of a controller ("memory", "cpu"): the process's own and those above it, as far as they are mounted. A
/// group that is not visible from inside a container has a folder that does not exist. `root` is where /proc and /sys
/// are.
std::vector<ControlGroup> control_groups(std::string_view controller, const std::filesystem::path& root);

/// The first number of a file; none for a missing file and for a word such as "max".
std::optional<std::int64_t> number_in(const std::filesystem::path& path);

}  // namespace glimpse
