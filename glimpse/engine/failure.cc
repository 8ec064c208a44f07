#include "glimpse/engine/failure.h"

#include <new>

#include "glimpse/base/error.h"

namespace glimpse::engine {

std::string text_of(const std::exception_ptr& why) noexcept {
  try {
    try {
      std::rethrow_exception(why);
    } catch (const std::bad_alloc&) {
      return "out of memory; a shorter context and a smaller --prefill-chunk need less";
    } catch (const std::exception& error) {
      return error.what();
    } catch (...) {
      return "an exception that says nothing";
    }
  } catch (...) {
    return "out of memory";  // short enough to lie in the string itself
  }
}

bool is_bug(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const InternalError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace glimpse::engine
