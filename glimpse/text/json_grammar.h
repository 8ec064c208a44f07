// JSON schemas as grammars, by llama.cpp's translation, which bounds neither time nor memory nor depth: each has a
// child process of its own. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "glimpse/text/child_process.h"

namespace glimpse::text {

/// The grammar (GBNF) of JSON texts that a schema describes. What the translation does not know is not held against
/// them. Throws UserError: a schema that cannot be translated, or one that takes more than `limits`.
std::string json_schema_grammar(std::string_view schema, const ChildLimits& limits);

/// The limits of a schema that may take so long.
ChildLimits schema_limits(std::chrono::milliseconds time);

/// What llama.cpp's grammars of JSON take beyond JSON is taken out: halves of surrogate pairs, control characters and a
/// space behind a backslash.
void make_strict(std::string& grammar);

/// The grammar of any JSON object.
std::string_view json_object_grammar();

}  // namespace glimpse::text
