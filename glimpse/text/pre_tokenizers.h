// The pre-tokenizers that we take, by name, and what libllama's implementation of each can bear. Most go through
// std::regex, which recurses once for every character of a match, and some take time in the square of a run. What would
// overflow a stack or take seconds is refused here. Constant data; any thread may call.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace glimpse::text {

struct PreTokenizer;  ///< one of a constant table

std::vector<std::string_view> pre_tokenizer_names();

/// Throws UserError that lists the known when there is none of that name.
const PreTokenizer& find_pre_tokenizer(std::string_view name);

/// Bytes of stack that libllama may need for `text`, which is valid UTF-8; 0: few. Throws UserError when a run of
/// characters of one kind is longer than what can be tokenised.
std::size_t stack_for(const PreTokenizer& pre, std::string_view text);

/// How many stretches of text between added tokens one call may hold: libllama compiles its expressions for each.
std::size_t most_stretches(const PreTokenizer& pre);

}  // namespace glimpse::text
