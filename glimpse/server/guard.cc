#include "glimpse/server/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

/// "name" of "name:8080", "[::1]" of "[::1]:8080".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, std::min(host.find(']'), host.size() - 1) + 1);
  return host.substr(0, host.find(':'));
}

bool is_address(std::string_view host) {
  if (host.starts_with('[')) return host.ends_with(']');
  const auto digit = [](char c) { return (c >= '0' && c <= '9') || c == '.'; };
  return !host.empty() && std::all_of(host.begin(), host.end(), digit) &&
         std::count(host.begin(), host.end(), '.') == 3;
}

bool names(const std::vector<std::string>& list, std::string_view name) {
  return std::any_of(list.begin(), list.end(), [&](const std::string& each) { return lower(each) == name; });
}

/// True for a page that this server gave out itself: the same host and port.
bool same_origin(const HttpHead& head) {
  const std::string origin = lower(head.origin), host = lower(head.host);
  return !host.empty() && (origin == "http://" + host || origin == "https://" + host);
}

bool listed(const HttpHead& head, const ServerOptions& options) {
  return head.has_origin && names(options.origins, lower(head.origin));
}

/// Takes the same time wherever the texts differ.
bool same_text(std::string_view a, std::string_view b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return different == 0;
}

}  // namespace

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || (host.starts_with("127.") && is_address(host));
}

void check_posture(const ServerOptions& options) {
  const auto visible = [](char c) { return c > ' ' && c < 0x7f; };
  if (!std::all_of(options.api_key.begin(), options.api_key.end(), visible)) {
    throw UserError("--api-key has a blank or a character that is not ASCII, which no client can send; give another");
  }
  if (is_loopback(options.host) || !options.api_key.empty() || options.insecure) return;
  throw UserError(
      fmt::format("--host {}: others could use the server; give --api-key KEY, or --insecure where a proxy or "
                  "firewall keeps them out",
                  excerpt(options.host)));
}

void check_origin(const HttpHead& head, const ServerOptions& options) {
  if (!head.has_host && head.http_11) throw ApiError(400, "the request has no Host");
  const std::string host = lower(without_port(head.host));
  if (head.has_host && host != "localhost" && !is_address(host) && host != lower(options.host) &&
      !names(options.hosts, host)) {
    throw ApiError(403, fmt::format("the Host '{}' is not this server's; start it with --allowed-hosts {} if it is",
                                    excerpt(head.host), excerpt(host)));
  }
  if (head.has_origin && !same_origin(head) && !listed(head, options)) {
    throw ApiError(403, fmt::format("pages of '{}' may not call this server; start it with --cors-origins {} if they "
                                    "may",
                                    excerpt(head.origin), excerpt(head.origin)));
  }
}

void check_key(const HttpHead& head, Route route, const ServerOptions& options) {
  if (options.api_key.empty() || route == Route::health || route == Route::page) return;
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view given = head.authorization;
  const bool bearer = lower(given.substr(0, kBearer.size())) == kBearer;
  if (bearer && same_text(given.substr(kBearer.size()), options.api_key)) return;
  throw ApiError(401, given.empty() ? "this server asks for a key: send 'Authorization: Bearer KEY'"
                                    : "the key is not this server's")
      .coded("invalid_api_key");
}

void check_content(const HttpHead& head) {
  const std::string type = lower(std::string_view(head.content_type).substr(0, head.content_type.find(';')));
  const std::size_t end = type.find_last_not_of(' ');
  if (end != std::string::npos && type.substr(0, end + 1) == "application/json") return;
  throw ApiError(415, fmt::format("the body is '{}'; send JSON with 'Content-Type: application/json'",
                                  excerpt(head.content_type)));
}

void add_cors(HttpAnswer& answer, const HttpHead& head, const ServerOptions& options) {
  if (!listed(head, options)) return;
  answer.fields.emplace_back("Access-Control-Allow-Origin", head.origin);
  answer.fields.emplace_back("Access-Control-Expose-Headers", "x-request-id");
  answer.fields.emplace_back("Vary", "Origin");
}

HttpAnswer preflight(const HttpHead& head) {
  const std::string allowed = allowed_methods(head.path());
  if (allowed.empty()) throw ApiError(404, fmt::format("no such path: {}", excerpt(head.path())));
  HttpAnswer answer{204, {}, {}, {{"Allow", allowed + ", OPTIONS"}}};
  if (head.has_origin) {
    answer.fields.emplace_back("Access-Control-Allow-Methods", allowed);
    answer.fields.emplace_back("Access-Control-Allow-Headers", "authorization, content-type, x-request-id");
    answer.fields.emplace_back("Access-Control-Max-Age", "600");
  }
  return answer;
}

}  // namespace glimpse::server
