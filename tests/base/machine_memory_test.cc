#include "glimpse/base/machine_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace glimpse {
namespace {

namespace fs = std::filesystem;

/// A made-up /proc and /sys.
class AvailableMemory : public testing::Test {
 protected:
  AvailableMemory() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / (std::string("glimpse_available_memory_") + test->name());
    fs::remove_all(root_);
  }
  ~AvailableMemory() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file, std::ios::binary) << text;
  }

  fs::path root_;
};

TEST_F(AvailableMemory, IsNoMoreThanThisMachineHas) {
  const auto bytes = available_memory();
  ASSERT_TRUE(bytes.has_value());
  EXPECT_GT(*bytes, 0);
  EXPECT_LE(*bytes, std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE));
}

TEST_F(AvailableMemory, LeavesOutWhatOthersUseAndSwap) {
  write("proc/meminfo",
        "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\nCached: 350 kB\nHugePages_Total:   "
        "7\n"
        "SwapTotal:  500 kB\nSwapFree: 500 kB\n");
  EXPECT_EQ(available_memory(root_), 400 * 1024);
}

TEST_F(AvailableMemory, IsGuessedOnAnOldSystem) {
  write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 350 kB\n");
  EXPECT_EQ(available_memory(root_), 450 * 1024);
}

TEST_F(AvailableMemory, IsWhatTheGroupsLeave) {
  write("proc/meminfo", "MemAvailable: 1000 kB\n");
  write("proc/self/cgroup", "0::/outer/inner\n");
  EXPECT_EQ(available_memory(root_), 1000 * 1024);
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "800000\n");
  EXPECT_EQ(available_memory(root_), 1000 * 1024);
  write("sys/fs/cgroup/outer/memory.max", "700000\n");
  EXPECT_EQ(available_memory(root_), 700000);
  write("sys/fs/cgroup/outer/memory.current", "100000\n");
  EXPECT_EQ(available_memory(root_), 600000);
  write("sys/fs/cgroup/outer/inner/memory.max", "900000\n");
  EXPECT_EQ(available_memory(root_), 100000);
  write("sys/fs/cgroup/memory.max", "9000000000\n");
  EXPECT_EQ(available_memory(root_), 100000);
}

TEST_F(AvailableMemory, CountsPageCacheOfAGroupAsFree) {
  write("proc/meminfo", "MemAvailable: 1000 kB\n");
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "500000\n");
  write("sys/fs/cgroup/a/memory.current", "450000\n");
  EXPECT_EQ(available_memory(root_), 50000);
  write("sys/fs/cgroup/a/memory.stat",
        "anon 150000\nfile 300000\nshmem 40000\ninactive_file 200000\nactive_file 60000\n");
  EXPECT_EQ(available_memory(root_), 310000);
  write("sys/fs/cgroup/a/memory.current", "900000\n");  // the limit was lowered
  EXPECT_EQ(available_memory(root_), 0);
}

TEST_F(AvailableMemory, KnowsTheFirstVersionOfGroups) {
  write("proc/meminfo", "MemAvailable: 1000 kB\n");
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/b\nnonsense\n");
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  EXPECT_EQ(available_memory(root_), 1000 * 1024);
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "8192\n");
  write("sys/fs/cgroup/memory/b/memory.usage_in_bytes", "6000\n");
  write("sys/fs/cgroup/memory/b/memory.stat", "active_file 1\ntotal_active_file 500\ntotal_inactive_file 1000\n");
  EXPECT_EQ(available_memory(root_), 8192 - 4500);
}

TEST_F(AvailableMemory, MayBeUnknown) {
  EXPECT_EQ(available_memory(root_), std::nullopt);
  write("proc/meminfo", "nothing of use\n");
  EXPECT_EQ(available_memory(root_), std::nullopt);
}

}  // namespace
}  // namespace glimpse
