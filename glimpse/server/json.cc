#include "glimpse/server/json.h"

#include <fmt/format.h>

#include <algorithm>
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

/// The end of the text that begins at `at` with a quotation mark.
std::size_t end_of_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

/// The end of the value that begins at `at`: the comma or bracket behind it.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  for (int depth = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at);
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']' || c == '}')) return at;
    depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    ++at;
  }
  return at;
}

constexpr std::string_view kBlanks = " \t\r\n";

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

void add_quoted(std::string& out, std::string_view text) {
  const auto plain = [](char c) { return c >= ' ' && c <= '~' && c != '"' && c != '\\'; };
  if (!std::all_of(text.begin(), text.end(), plain)) {
    out += text_of(Json(text));
    return;
  }
  out += '"';
  out += text;
  out += '"';
}

std::string_view member_text(std::string_view object, std::string_view name) {
  std::string_view found;
  std::size_t at = object.find('{');
  while (at < object.size() && (at = object.find_first_of("\"}", at + 1)) < object.size() && object[at] == '"') {
    const std::size_t key = end_of_string(object, at);
    const std::size_t colon = object.find(':', key);
    if (colon == std::string_view::npos) break;
    const std::size_t begin = object.find_first_not_of(kBlanks, colon + 1);
    if (begin == std::string_view::npos) break;
    const std::size_t end = end_of_value(object, begin);
    if (object.substr(at + 1, key - at - 2) == name) found = object.substr(begin, end - begin);
    at = end;
  }
  return found;
}

std::vector<std::string_view> element_texts(std::string_view array) {
  std::vector<std::string_view> out;
  std::size_t at = array.find('[');
  while (at < array.size() && array[at] != ']') {
    const std::size_t begin = array.find_first_not_of(kBlanks, at + 1);
    if (begin == std::string_view::npos || array[begin] == ']') break;
    at = end_of_value(array, begin);
    out.push_back(array.substr(begin, at - begin));
  }
  return out;
}

std::string compact_text(std::string_view json) {
  std::string out;
  for (std::size_t at = 0; at < json.size();) {
    if (json[at] != '"') {
      if (kBlanks.find(json[at]) == std::string_view::npos) out += json[at];
      ++at;
      continue;
    }
    const std::size_t end = end_of_string(json, at);
    const std::string_view text = json.substr(at, end - at);
    out += text.find('\\') == std::string_view::npos ? std::string(text) : Body::parse(text).dump();
    at = end;
  }
  return out;
}

}  // namespace glimpse::server
