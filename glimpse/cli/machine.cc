#include "glimpse/cli/machine.h"

#include <sys/utsname.h>

#include <fstream>
#include <thread>

namespace glimpse::cli {

std::string_view version_text() {
  return "glimpse " GLIMPSE_VERSION " (" GLIMPSE_COMMIT ")";
}
std::string_view commit() {
  return GLIMPSE_COMMIT;
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

int cpu_cores() {
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace glimpse::cli
