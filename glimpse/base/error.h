// The two ways a call can go wrong. Any thread.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace glimpse {

/// The user's input cannot be served: a file, flag, prompt, plan or profile. The text names the value, the
/// limit and the cure, and is all that is shown. The command line exits with 2.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& text) : std::runtime_error(text) {}
};

/// A bug of ours. The command line exits with 70 and asks for a report.
class InternalError : public std::logic_error {
 public:
  explicit InternalError(const std::string& text) : std::logic_error(text) {}
};

[[noreturn]] void fail_check(std::string_view what, const char* file, int line);

/// Throws InternalError when `ok` is false. For what only a bug can break, never for input.
/// (The built-ins stand for std::source_location, which clang 14 does not have.)
inline void check(bool ok, std::string_view what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  if (!ok) [[unlikely]]
    fail_check(what, file, line);
}

}  // namespace glimpse
