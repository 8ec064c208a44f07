// JSON in and out: nlohmann's values, forward declared so that headers stay cheap. Any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace glimpse::server {

/// What is written: keys in their order, each looked for one by one. Never for what a client sends.
using Json = nlohmann::ordered_json;
/// What is read.
using Body = nlohmann::json;

/// Throws ApiError: no JSON, no UTF-8, values nested deeper than `depth`.
Body parse_json(std::string_view text, std::int64_t depth);
/// One line. What is not UTF-8 becomes U+FFFD.
std::string text_of(const Json& json);

}  // namespace glimpse::server
