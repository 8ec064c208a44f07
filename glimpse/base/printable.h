// Text of a file or a command line as it may be shown: a terminal must not obey it. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace glimpse {

/// The text with '?' for each control character: those below space (the line end, too), 0x7f, and U+0080 to U+009f,
/// which some terminals obey in UTF-8.
std::string printable(std::string_view text);

/// The same of at most 64 bytes, in whole characters, and "..." for the rest: how a message repeats a wrong value.
std::string excerpt(std::string_view text);

}  // namespace glimpse
