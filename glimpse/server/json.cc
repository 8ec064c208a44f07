#include "glimpse/server/json.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

/// Refuses deep nesting before any of it is built: values are read, copied and freed by functions that call
/// themselves.
void check_depth(std::string_view text, std::int64_t most) {
  std::int64_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most) {
        throw ApiError(400, fmt::format("the body nests deeper than {} arrays and objects; make it flatter", most));
      }
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

Body parse_json(std::string_view text, std::int64_t depth) {
  check_depth(text, depth);
  try {
    return Body::parse(text);
  } catch (const Body::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ...", with a part of the text behind.
    const std::string_view what = error.what();
    const std::size_t begin = what.find("] ");
    const std::size_t end = what.find(" - ");
    const std::size_t from = begin == std::string_view::npos ? 0 : begin + 2;
    throw ApiError(400, fmt::format("the body is no JSON: {}",
                                    what.substr(from, end == std::string_view::npos ? end : end - from)));
  }
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace glimpse::server
