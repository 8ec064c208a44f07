// What a path and a method ask for. One table; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "glimpse/server/http.h"

namespace glimpse::server {

enum class Route : std::uint8_t {
  health,
  page,  ///< the microscope's own files
  models,
  one_model,
  props,
  tokenizer_info,
  metrics,
  list_requests,
  cancel_request,
  request_events,
  request_step,
  chat,
  completions,
  tokenize,
  detokenize,
  apply_template,
};

/// Throws ApiError: 404 for a path that is not there, 405 for a method that it has not. HEAD is as GET.
Route route_of(const HttpHead& head);
/// Methods of a path, as the field Allow has them; empty: no such path.
std::string allowed_methods(std::string_view path);
/// ID of "/v1/requests/ID", "/v1/requests/ID/events" and "/v1/requests/ID/steps/N".
std::string_view request_of(std::string_view path);
/// N of the last one, as it was written.
std::string_view step_of(std::string_view path);
/// The rest of "/v1/models/NAME", which may have slashes, with %XX as the byte; what is no such escape stays as it is.
std::string model_of(std::string_view path);

}  // namespace glimpse::server
