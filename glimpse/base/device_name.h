// The name of a device, as users write it. A plain value; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace glimpse {

struct DeviceName {
  enum class Kind : std::uint8_t { cpu, cuda } kind = Kind::cpu;
  int number = 0;  ///< of several GPUs
};

/// "cpu", "cuda" (the first one) or "cuda:N". Throws UserError.
DeviceName parse_device(std::string_view text);
std::string to_string(const DeviceName& device);

}  // namespace glimpse
