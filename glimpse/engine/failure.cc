#include "glimpse/engine/failure.h"

#include <new>

#include "glimpse/base/error.h"
#include "glimpse/base/request_error.h"

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

namespace {

template <typename Error>
bool is(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

bool is_requests_own(const std::exception_ptr& why) {
  return is<RequestError>(why);
}

bool is_bug(const std::exception_ptr& why) {
  return is<InternalError>(why);
}

}  // namespace glimpse::engine
