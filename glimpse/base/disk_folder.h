// Folders whose files are on a disk, not in memory. Any thread.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

namespace glimpse {

/// The name of the file system ("tmpfs" or "ramfs") where the folder's files are kept in memory; empty for every other
/// one, and for a folder that cannot be looked at.
std::string_view memory_file_system(const std::filesystem::path& folder);

/// The first of the candidates that is a folder, can be written to, and is on a disk as far as `in_memory` knows; an
/// empty path where there is none.
std::filesystem::path disk_folder(
    std::span<const std::filesystem::path> candidates,
    const std::function<std::string_view(const std::filesystem::path&)>& in_memory = memory_file_system);

}  // namespace glimpse
