#include "glimpse/base/device_name.h"

#include <fmt/format.h>

#include <charconv>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"

namespace glimpse {

DeviceName parse_device(std::string_view text) {
  if (text == "cpu") return {};
  DeviceName device{DeviceName::Kind::cuda, 0};
  if (text == "cuda") return device;
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const std::string_view digits = text.substr(kPrefix.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), device.number);
    if (error == std::errc() && end == digits.data() + digits.size() && device.number >= 0) return device;
  }
  throw UserError(
      fmt::format("unknown device '{}'; give cpu, cuda, or cuda:N for the GPU of number N from 0 on", excerpt(text)));
}

std::string to_string(const DeviceName& device) {
  if (device.kind == DeviceName::Kind::cpu) return "cpu";
  return fmt::format("cuda:{}", device.number);
}

}  // namespace glimpse
