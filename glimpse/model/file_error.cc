#include "glimpse/model/file_error.h"

#include <algorithm>
#include <system_error>

namespace glimpse::model {

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string safe(text.substr(0, kLongest));
  std::replace_if(
      safe.begin(), safe.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  if (text.size() > kLongest) safe += "...";
  return safe;
}

void require_file(const std::filesystem::path& path, std::string_view cure) {
  std::error_code failed;
  if (std::filesystem::status(path, failed).type() != std::filesystem::file_type::not_found) return;
  fail_file(path.string(), "there is no such file; {}", cure);
}

}  // namespace glimpse::model
