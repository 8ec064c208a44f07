#include "glimpse/base/error.h"

#include <fmt/format.h>

namespace glimpse {

void fail_check(std::string_view what, const char* file, int line) {
  throw InternalError(fmt::format("{} ({}:{})", what, file, line));
}

}  // namespace glimpse
