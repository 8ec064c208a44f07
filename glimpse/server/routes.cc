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

constexpr Row kRows[] = {
    {"/health", "GET", Route::health},
    {"/v1/models", "GET", Route::models},
    {kModels, "GET", Route::one_model},
    {"/props", "GET", Route::props},
    {"/tokenizer_info", "GET", Route::tokenizer_info},
    {"/metrics", "GET", Route::metrics},
    {"/v1/requests", "GET", Route::list_requests},
    {kRequests, "DELETE", Route::cancel_request},
    {"/v1/chat/completions", "POST", Route::chat},
    {"/v1/completions", "POST", Route::completions},
    {"/tokenize", "POST", Route::tokenize},
    {"/detokenize", "POST", Route::detokenize},
    {"/apply-template", "POST", Route::apply_template},
};

/// Endpoints that clients of OpenAI and Anthropic know, and this server has not.
constexpr std::string_view kOthers[] = {"/v1/responses", "/v1/messages", "/v1/embeddings"};

bool fits(const Row& row, std::string_view path) {
  const bool has_name = row.path == kRequests || row.path == kModels;
  return has_name ? path.starts_with(row.path) && path.size() > row.path.size() : path == row.path;
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
  return path.substr(std::min(kRequests.size(), path.size()));
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
