#include "glimpse/base/machine_cores.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "glimpse/base/control_groups.h"
#include "glimpse/base/log.h"

namespace glimpse {
namespace {

namespace fs = std::filesystem;

constexpr int kMostProcessors = 1 << 16;

/// The processor that stands for the core: the first of those that share it ("0,4" or "0-1").
int core_of(int processor, const fs::path& root) {
  const std::string name = "cpu" + std::to_string(processor);
  const auto first = number_in(root / "sys/devices/system/cpu" / name / "topology/thread_siblings_list");
  return first && *first >= 0 ? static_cast<int>(*first) : processor;
}

/// Processors that the group may keep busy all the time, rounded up; none where it has no quota.
std::optional<std::int64_t> quota_of(const ControlGroup& group) {
  std::int64_t quota = 0, period = 0;
  if (group.version == 1) {
    quota = number_in(group.folder / "cpu.cfs_quota_us").value_or(0);
    period = number_in(group.folder / "cpu.cfs_period_us").value_or(0);
  } else {
    std::ifstream file(group.folder / "cpu.max");  // "max 100000" or "150000 100000"
    if (!(file >> quota >> period)) return std::nullopt;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period + (quota % period > 0 ? 1 : 0);
}

}  // namespace

std::vector<int> allowed_processors() {
  std::vector<int> allowed;
  for (int most = 1024; most <= kMostProcessors; most *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(most), [](cpu_set_t* s) { CPU_FREE(s); });
    if (set == nullptr) return allowed;
    const std::size_t bytes = CPU_ALLOC_SIZE(most);
    CPU_ZERO_S(bytes, set.get());
    if (::sched_getaffinity(0, bytes, set.get()) == 0) {
      for (int processor = 0; processor < most; ++processor) {
        if (CPU_ISSET_S(processor, bytes, set.get())) allowed.push_back(processor);
      }
      return allowed;
    }
    if (errno != EINVAL) return allowed;  // EINVAL: the system has more processors than the set holds
  }
  return allowed;
}

int usable_cores(const std::vector<int>& allowed, const fs::path& root) {
  std::set<int> cores;
  for (const int processor : allowed) cores.insert(core_of(processor, root));
  std::int64_t least = static_cast<std::int64_t>(cores.size());
  if (allowed.empty()) least = static_cast<std::int64_t>(std::thread::hardware_concurrency());
  for (const ControlGroup& group : control_groups("cpu", root))
    least = std::min(least, quota_of(group).value_or(least));
  return static_cast<int>(std::max<std::int64_t>(least, 1));
}

int usable_cores() {
  return usable_cores(allowed_processors(), "/");
}

int thread_count(int wanted) {
  const int cores = usable_cores();
  if (wanted <= 0) return cores;
  if (wanted > cores) {
    log_message(
        LogLevel::warning,
        fmt::format("-t {}: this process may use {} core{}, and more threads than cores make each token slower; "
                    "give -t {} or leave -t out",
                    wanted, cores, cores == 1 ? "" : "s", cores));
  }
  return wanted;
}

}  // namespace glimpse
