#include "glimpse/server/http.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace glimpse::server {
namespace {

std::string_view reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:%a, %d %b %Y %H:%M:%S GMT}", utc);
}

}  // namespace

std::string head_text(const HttpAnswer& answer, const Framing& framing) {
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\n", answer.status, reason_of(answer.status), date_text());
  if (answer.status != 204) {
    text += fmt::format("Content-Type: {}\r\nX-Content-Type-Options: nosniff\r\n", answer.type);
    if (framing.end == BodyEnd::chunk) text += "Transfer-Encoding: chunked\r\n";
    if (framing.end == BodyEnd::length) text += fmt::format("Content-Length: {}\r\n", answer.body.size());
  }
  for (const auto& [name, value] : answer.fields) text += fmt::format("{}: {}\r\n", name, value);
  return text + (framing.keep ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

std::string chunk_text(std::string_view bytes) {
  return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes);
}

std::string_view echo_of(std::string_view request_id) {
  constexpr std::size_t kLongest = 128;
  const bool fits = request_id.size() <= kLongest &&
                    std::all_of(request_id.begin(), request_id.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return fits ? request_id : std::string_view();
}

}  // namespace glimpse::server
