#include "glimpse/base/machine_memory.h"

#include <gtest/gtest.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <fstream>

namespace glimpse {
namespace {

namespace fs = std::filesystem;

class MachineMemory : public testing::Test {
 protected:
  MachineMemory() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / (std::string("glimpse_machine_memory_") + test->name());
    fs::remove_all(root_);
  }
  ~MachineMemory() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file, std::ios::binary) << text;
  }

  fs::path root_;
};

TEST_F(MachineMemory, IsWhatThisMachineHasAtMost) {
  const auto bytes = machine_memory();
  ASSERT_TRUE(bytes.has_value());
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES);
  EXPECT_GT(*bytes, 0);
  struct sysinfo info {};
  ASSERT_EQ(sysinfo(&info), 0);
  EXPECT_LE(*bytes, pages * sysconf(_SC_PAGESIZE) + static_cast<std::int64_t>(info.totalswap * info.mem_unit));
}

TEST_F(MachineMemory, CountsSwap) {
  write("proc/meminfo",
        "MemTotal:       1000 kB\nMemFree:         400 kB\nHugePages_Total:       7\nSwapTotal:  500 kB\n");
  EXPECT_EQ(machine_memory(root_), 1500 * 1024);
}

TEST_F(MachineMemory, IsWhatTheGroupsAllow) {
  write("proc/meminfo", "MemTotal: 1000 kB\n");
  write("proc/self/cgroup", "0::/outer/inner\n");
  EXPECT_EQ(machine_memory(root_), 1000 * 1024);
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(machine_memory(root_), 1000 * 1024);
  write("sys/fs/cgroup/outer/memory.max", "700000\n");
  EXPECT_EQ(machine_memory(root_), 700000);
  write("sys/fs/cgroup/outer/inner/memory.max", "300000\n");
  EXPECT_EQ(machine_memory(root_), 300000);
  write("sys/fs/cgroup/memory.max", "9000000000\n");
  EXPECT_EQ(machine_memory(root_), 300000);
}

TEST_F(MachineMemory, KnowsTheFirstVersionOfGroups) {
  write("proc/meminfo", "MemTotal: 1000 kB\n");
  write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:hugetlb,memory:/b\nnonsense\n");
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  EXPECT_EQ(machine_memory(root_), 1000 * 1024);
  write("sys/fs/cgroup/memory/b/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(machine_memory(root_), 4096);
}

TEST_F(MachineMemory, MayBeUnknown) {
  EXPECT_EQ(machine_memory(root_), std::nullopt);
  write("proc/meminfo", "nothing of use\n");
  EXPECT_EQ(machine_memory(root_), std::nullopt);
}

}  // namespace
}  // namespace glimpse
