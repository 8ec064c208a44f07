#include "glimpse/cli/machine.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>

#include "glimpse/base/machine_cores.h"

namespace glimpse::cli {

extern const std::string_view kCommit;  // in a file that every build looks after

std::string_view version_text() {
  static const std::string text = fmt::format("glimpse " GLIMPSE_VERSION " ({})", kCommit);
  return text;
}
std::string_view commit() {
  return kCommit;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  utsname system{};
  return ::uname(&system) == 0 ? system.machine : "unknown";
}

std::string profile_cpu_name() {
  return profile_name(cpu_name());
}
std::string profile_name(std::string name) {
  constexpr std::size_t kMost = 128;
  name.resize(std::min(name.size(), kMost));
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return name.empty() ? "unknown" : name;
}

int cpu_cores() {
  return usable_cores();
}

}  // namespace glimpse::cli
