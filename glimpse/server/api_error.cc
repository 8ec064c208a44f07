#include "glimpse/server/api_error.h"

#include <fmt/format.h>

#include <new>
#include <nlohmann/json.hpp>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/server/json.h"

namespace glimpse::server {

ApiError bad_field(std::string_view field, const std::string& text) {
  return ApiError(400, fmt::format("'{}' {}", field, text)).about(field);
}

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string error_json(const ApiError& error) {
  const auto or_null = [](const std::string& text) { return text.empty() ? Json() : Json(text); };
  return text_of({{"error",
                   {{"message", error.what()},
                    {"type", error_type(error.status)},
                    {"param", or_null(error.param)},
                    {"code", or_null(error.code)}}}});
}

int retry_after(int status) {
  return status == 429 || status == 503 ? 1 : 0;
}

ApiError error_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const ApiError& error) {
    return error;
  } catch (const UserError& error) {
    return {400, error.what()};
  } catch (const std::bad_alloc&) {
    return {500, "out of memory; send less at a time"};
  } catch (const std::exception& error) {
    log_message(LogLevel::warning, fmt::format("internal error in a request: {}", error.what()));
    return {500, "internal error; the server's log has more"};
  }
}

}  // namespace glimpse::server
