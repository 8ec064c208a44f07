#include "glimpse/server/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "glimpse/base/printable.h"
#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

struct Row {
  std::string_view path, method;
  Route route;
};

constexpr std::string_view kRequests = "/v1/requests/";
constexpr std::string_view kModels = "/v1/models/";
constexpr std::string_view kEvents = "/events", kSteps = "/steps/";  // behind a request's id

constexpr Row kRows[] = {
    {"/", "GET", Route::page},
    {"/microscope.css", "GET", Route::page},
    {"/microscope.js", "GET", Route::page},
    {"/health", "GET", Route::health},
    {"/v1/models", "GET", Route::models},
    {kModels, "GET", Route::one_model},
    {"/props", "GET", Route::props},
    {"/tokenizer_info", "GET", Route::tokenizer_info},
    {"/metrics", "GET", Route::metrics},
    {"/v1/requests", "GET", Route::list_requests},
    {kRequests, "DELETE", Route::cancel_request},
    {kEvents, "GET", Route::request_events},
    {kSteps, "GET", Route::request_step},
    {"/v1/chat/completions", "POST", Route::chat},
    {"/v1/completions", "POST", Route::completions},
    {"/tokenize", "POST", Route::tokenize},
    {"/detokenize", "POST", Route::detokenize},
    {"/apply-template", "POST", Route::apply_template},
};

/// Endpoints that clients of OpenAI and Anthropic know, and this server has not.
constexpr std::string_view kOthers[] = {"/v1/responses", "/v1/messages", "/v1/embeddings"};

/// What follows the id in a path of kRequests; empty for the id alone.
std::string_view behind_id(std::string_view path) {
  path.remove_prefix(kRequests.size());
  const std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? "" : path.substr(slash);
}

bool fits(const Row& row, std::string_view path) {
  if (row.path == kModels) return path.starts_with(kModels) && path.size() > kModels.size();
  if (row.path != kRequests && row.path != kEvents && row.path != kSteps) return path == row.path;
  if (!path.starts_with(kRequests) || request_of(path).empty()) return false;
  const std::string_view behind = behind_id(path);
  if (row.path == kSteps) return behind.starts_with(kSteps) && behind.size() > kSteps.size();
  return behind == (row.path == kEvents ? kEvents : "");
}

}  // namespace

std::string allowed_methods(std::string_view path) {
  for (const Row& row : kRows) {
    if (fits(row, path)) return row.method == "GET" ? "GET, HEAD" : std::string(row.method);
  }
  return {};
}

Route route_of(const HttpHead& head) {
  const std::string_view path = head.path();
  const std::string_view method = head.method == "HEAD" ? "GET" : std::string_view(head.method);
  for (const Row& row : kRows) {
    if (fits(row, path) && row.method == method) return row.route;
  }
  if (const std::string allowed = allowed_methods(path); !allowed.empty()) {
    throw ApiError(405, fmt::format("{} takes {}, not {}", excerpt(path), allowed, excerpt(head.method)));
  }
  for (const std::string_view other : kOthers) {
    if (path != other) continue;
    throw ApiError(404, fmt::format("this server has no {}; it has /v1/chat/completions and /v1/completions", other));
  }
  throw ApiError(404, fmt::format("no such path: {}; docs/server.md lists all", excerpt(path)));
}

std::string_view request_of(std::string_view path) {
  const std::string_view rest = path.substr(std::min(kRequests.size(), path.size()));
  return rest.substr(0, rest.find('/'));
}

std::string_view step_of(std::string_view path) {
  const std::string_view behind = behind_id(path);
  return behind.substr(std::min(kSteps.size(), behind.size()));
}

std::string model_of(std::string_view path) {
  const std::string_view written = path.substr(std::min(kModels.size(), path.size()));
  std::string name;
  for (std::size_t i = 0; i < written.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = written.data() + i + 1;
    if (written[i] == '%' && i + 2 < written.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      name += static_cast<char>(byte);
      i += 2;
    } else {
      name += written[i];
    }
  }
  return name;
}

}  // namespace glimpse::server
