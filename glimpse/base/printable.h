// Texts as messages show them: those of a file or a command line, which a terminal must not obey, and sizes. Any
// thread.
#pragma once

#include <string>
#include <string_view>

namespace glimpse {

/// The text with '?' for each control character: those below space (the line end, too), 0x7f, and U+0080 to U+009f,
/// which some terminals obey in UTF-8.
std::string printable(std::string_view text);

/// The same of at most 64 bytes, in whole characters, and "..." for the rest: how a message repeats a wrong value.
std::string excerpt(std::string_view text);

/// "12.30 MB", in powers of 1000.
std::string bytes_text(double bytes);

}  // namespace glimpse
