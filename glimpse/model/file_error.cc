#include "glimpse/model/file_error.h"

#include <algorithm>

namespace glimpse::model {

std::string shown(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string safe(text.substr(0, kLongest));
  std::replace_if(
      safe.begin(), safe.end(), [](char c) { return c < 0x20 || c > 0x7e; }, '?');
  if (text.size() > kLongest) safe += "...";
  return safe;
}

}  // namespace glimpse::model
