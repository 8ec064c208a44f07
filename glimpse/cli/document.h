// What a file of text is: UTF-8, with or without a byte order mark. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace glimpse::cli {

/// The text of a file's bytes, without the mark. Throws UserError that names `label`, what the bytes seem to be (PDF,
/// a compressed file, UTF-16, Latin-1) and the command that makes text of them.
std::string document_of(std::string bytes, std::string_view label);

}  // namespace glimpse::cli
