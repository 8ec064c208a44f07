// JSON in and out: nlohmann's values, forward declared so that headers stay cheap. Any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace glimpse::server {

/// What is written: keys in their order, each looked for one by one. Never for what a client sends.
using Json = nlohmann::ordered_json;
/// What is read.
using Body = nlohmann::json;

/// Throws ApiError: no JSON, no UTF-8, values nested deeper than `depth`.
Body parse_json(std::string_view text, std::int64_t depth);
/// Of JSON that was read as such, where the order of keys matters and Body has lost it: the text of an object's member
/// (of several the last; empty: none, or its name has escapes), the texts of an array's elements.
std::string_view member_text(std::string_view object, std::string_view name);
std::vector<std::string_view> element_texts(std::string_view array);
/// The same without white space, and each text without escapes that it does not need.
std::string compact_text(std::string_view json);

/// One line. What is not UTF-8 becomes U+FFFD.
std::string text_of(const Json& json);
/// Adds the same of a text: at once where it needs no escapes, as most tokens do.
void add_quoted(std::string& out, std::string_view text);

}  // namespace glimpse::server
