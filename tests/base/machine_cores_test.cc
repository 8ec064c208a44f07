#include "glimpse/base/machine_cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "glimpse/base/log.h"

namespace glimpse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// A made-up /proc and /sys.
class UsableCores : public testing::Test {
 protected:
  UsableCores() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(testing::TempDir()) / (std::string("glimpse_usable_cores_") + test->name());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  ~UsableCores() override { fs::remove_all(root_); }

  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file, std::ios::binary) << text;
  }
  void siblings(int processor, const std::string& list) const {
    write("sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/thread_siblings_list", list + "\n");
  }

  fs::path root_;
};

TEST_F(UsableCores, AreTheAllowedProcessorsWhereNothingElseIsKnown) {
  EXPECT_EQ(usable_cores({0, 1, 5}, root_), 3);
  EXPECT_EQ(usable_cores({7}, root_), 1);
}

TEST_F(UsableCores, CountThreadsOfOneCoreOnce) {
  for (const int i : {0, 1, 2, 3}) {
    siblings(i, std::to_string(i) + "," + std::to_string(i + 4));
    siblings(i + 4, std::to_string(i) + "," + std::to_string(i + 4));
  }
  EXPECT_EQ(usable_cores({0, 1, 2, 3, 4, 5, 6, 7}, root_), 4);
  EXPECT_EQ(usable_cores({0, 4}, root_), 1);
  EXPECT_EQ(usable_cores({4, 5}, root_), 2);  // their first siblings are not allowed, the cores are
  siblings(0, "0-1");
  siblings(1, "0-1");
  EXPECT_EQ(usable_cores({0, 1}, root_), 1);
}

TEST_F(UsableCores, AreNoMoreThanTheQuotaRoundedUp) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  const std::vector<int> eight{0, 1, 2, 3, 4, 5, 6, 7};
  write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_cores(eight, root_), 8);
  write("sys/fs/cgroup/outer/inner/cpu.max", "250000 100000\n");
  EXPECT_EQ(usable_cores(eight, root_), 3);
  write("sys/fs/cgroup/outer/cpu.max", "200000 100000\n");
  EXPECT_EQ(usable_cores(eight, root_), 2);
  write("sys/fs/cgroup/outer/cpu.max", "5000 100000\n");
  EXPECT_EQ(usable_cores(eight, root_), 1);
  write("sys/fs/cgroup/outer/cpu.max", "nonsense\n");
  EXPECT_EQ(usable_cores(eight, root_), 3);
}

TEST_F(UsableCores, SeeTheQuotaOfAContainerAtTheMount) {
  write("proc/self/cgroup", "0::/a/name/of/the/host\n");
  write("sys/fs/cgroup/cpu.max", "150000 50000\n");
  EXPECT_EQ(usable_cores({0, 1, 2, 3, 4, 5, 6, 7}, root_), 3);
}

TEST_F(UsableCores, KnowTheFirstVersionOfGroups) {
  write("proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/b\n");
  write("sys/fs/cgroup/cpu/b/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(usable_cores({0, 1, 2, 3}, root_), 4);
  write("sys/fs/cgroup/cpu/b/cpu.cfs_quota_us", "110000\n");
  EXPECT_EQ(usable_cores({0, 1, 2, 3}, root_), 2);
}

TEST_F(UsableCores, AreAtLeastOne) {
  EXPECT_GE(usable_cores({}, root_), 1);
}

TEST(AllowedProcessors, FollowTheAffinityMask) {
  const std::vector<int> all = allowed_processors();
  ASSERT_FALSE(all.empty());
  std::vector<int> one;
  int cores = 0;
  std::thread([&] {  // the mask is the thread's
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(all.back(), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    one = allowed_processors();
    cores = usable_cores();
  })
      .join();
  EXPECT_THAT(one, ElementsAre(all.back()));
  EXPECT_EQ(cores, 1);
}

/// The warnings of `run` on one processor alone.
std::vector<std::string> warnings_on_one_processor(const std::function<void()>& run) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::warning) lines.emplace_back(line);
  });
  std::thread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(allowed_processors().front(), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    run();
  }).join();
  set_log_sink({});
  return lines;
}

TEST(ThreadCount, IsTheUsableCoresUnlessOneIsGiven) {
  EXPECT_THAT(warnings_on_one_processor([] {
                EXPECT_EQ(thread_count(0), 1);
                EXPECT_EQ(thread_count(1), 1);
              }),
              ElementsAre());
}

TEST(ThreadCount, BeyondTheCoresIsKeptWithAWarning) {
  EXPECT_THAT(warnings_on_one_processor([] { EXPECT_EQ(thread_count(4), 4); }),
              ElementsAre(AllOf(HasSubstr("-t 4"), HasSubstr("1 core,"), HasSubstr("give -t 1"))));
}

}  // namespace
}  // namespace glimpse
