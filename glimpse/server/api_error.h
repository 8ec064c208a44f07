// An error as OpenAI's clients read it: {"error": {message, type, param, code}}, with a status. Values; any thread.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace glimpse::server {

class ApiError : public std::runtime_error {
 public:
  ApiError(int http_status, const std::string& text) : std::runtime_error(text), status(http_status) {}
  ApiError about(std::string_view field) && {
    param = field;
    return std::move(*this);
  }
  ApiError coded(std::string_view word) && {
    code = word;
    return std::move(*this);
  }

  int status;
  std::string param, code;  ///< empty: null
};

/// The client's mistake in one field.
ApiError bad_field(std::string_view field, const std::string& text);

/// invalid_request_error, authentication_error, not_found_error, rate_limit_error, unavailable_error, server_error.
std::string_view error_type(int status);
/// {"error": {...}}, one line.
std::string error_json(const ApiError& error);
/// After how many seconds the client may try again; 0: trying again is of no use.
int retry_after(int status);

/// What was thrown in the work for one request: a UserError is the client's mistake (400), the rest is ours (500).
ApiError error_of(const std::exception_ptr& thrown);

}  // namespace glimpse::server
