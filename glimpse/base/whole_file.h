// Small files read and replaced as a whole. Any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace glimpse {

/// The bytes of a regular file; nothing where there is none by that name. Throws UserError naming the file: a folder or
/// a pipe, unreadable, more than `most` bytes.
std::optional<std::string> read_whole_file(const std::filesystem::path& file, std::size_t most);

/// Writes the file so that a process killed at any moment, a full disk or a missing permission leaves the old file or
/// the new one: a file beside it, synced, takes its name. Folders that are not there are made, for the user alone. A
/// link is followed, an old file's permissions stay. Throws UserError naming the file; the old one is as it was then.
void replace_file(const std::filesystem::path& file, std::string_view bytes);

/// Throws what replace_file would throw, as far as that can be known before there is anything to write; makes the
/// folders that it would make.
void require_replaceable(const std::filesystem::path& file);

}  // namespace glimpse
