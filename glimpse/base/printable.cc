#include "glimpse/base/printable.h"

#include <fmt/format.h>

namespace glimpse {

std::string printable(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (c == 0xc2 && next >= 0x80 && next <= 0x9f) {
      result += '?';
      ++i;
    } else {
      result += c < 0x20 || c == 0x7f ? '?' : text[i];
    }
  }
  return result;
}

std::string excerpt(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  if (text.size() <= kLongest) return printable(text);
  const auto continues = [&](std::size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
  std::size_t end = kLongest;
  while (end > kLongest - 4 && continues(end)) --end;
  return printable(text.substr(0, end)) + "...";
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

}  // namespace glimpse
