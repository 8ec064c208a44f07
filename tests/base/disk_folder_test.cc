#include "glimpse/base/disk_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

namespace glimpse {
namespace {

namespace fs = std::filesystem;

/// What /proc/mounts says of the mount itself.
std::string mounted_at(const std::string& folder) {
  std::ifstream mounts("/proc/mounts");
  std::string kind;
  for (std::string device, at, type, rest; mounts >> device >> at >> type && std::getline(mounts, rest);) {
    if (at == folder) kind = type;
  }
  return kind;
}

TEST(MemoryFileSystem, IsWhatTheListOfMountsSays) {
  if (mounted_at("/dev/shm") != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs here";
  EXPECT_EQ(memory_file_system("/dev/shm"), "tmpfs");
}

TEST(MemoryFileSystem, IsNoneElsewhere) {
  EXPECT_EQ(memory_file_system("/proc"), "");
  EXPECT_EQ(memory_file_system("/no-such-folder"), "");
}

TEST(DiskFolder, IsTheFirstThatCanBeUsed) {
  const fs::path base = fs::path(testing::TempDir()) / "glimpse_disk_folder";
  fs::remove_all(base);
  fs::create_directories(base / "memory");
  fs::create_directories(base / "disk");
  fs::create_directories(base / "other");
  std::ofstream(base / "file") << "x";
  const auto in_memory = [](const fs::path& path) {
    return std::string_view(path.filename() == "memory" ? "tmpfs" : "");
  };
  const std::vector<fs::path> candidates{base / "missing", base / "file", base / "memory", base / "disk",
                                         base / "other"};
  EXPECT_EQ(disk_folder(candidates, in_memory), base / "disk");
  EXPECT_EQ(disk_folder(std::span(candidates).first(3), in_memory), fs::path());
  fs::remove_all(base);
}

}  // namespace
}  // namespace glimpse
