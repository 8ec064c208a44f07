#include "glimpse/base/disk_folder.h"

#include <sys/vfs.h>
#include <unistd.h>

#include <cstdint>
#include <system_error>

namespace glimpse {

namespace fs = std::filesystem;

std::string_view memory_file_system(const fs::path& folder) {
  constexpr std::uint32_t kTmpfs = 0x01021994, kRamfs = 0x858458f6;  // linux/magic.h
  struct statfs info {};
  if (::statfs(folder.c_str(), &info) != 0) return "";
  const auto type = static_cast<std::uint32_t>(info.f_type);
  return type == kTmpfs ? "tmpfs" : type == kRamfs ? "ramfs" : "";
}

fs::path disk_folder(std::span<const fs::path> candidates,
                     const std::function<std::string_view(const fs::path&)>& in_memory) {
  for (const fs::path& folder : candidates) {
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored) || ::access(folder.c_str(), W_OK | X_OK) != 0) continue;
    if (in_memory(folder).empty()) return folder;
  }
  return {};
}

}  // namespace glimpse
