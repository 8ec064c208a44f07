#include "glimpse/cli/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "glimpse/base/error.h"
#include "glimpse/text/utf8.h"

namespace glimpse::cli {
namespace {

using namespace std::string_view_literals;

struct Format {
  std::string_view begin, name, cure;
};

constexpr std::string_view kUtf16 = "iconv -f utf-16 -t utf-8";
// The longer beginning first.
constexpr Format kFormats[] = {
    {"%PDF-"sv, "a PDF file", "pdftotext"},
    {"\x1F\x8B"sv, "compressed by gzip", "gunzip"},
    {"PK\x03\x04"sv, "a zip archive or an office document", "unzip' or 'pandoc -t plain"},
    {"BZh"sv, "compressed by bzip2", "bunzip2"},
    {"\xFD"
     "7zXZ"sv,
     "compressed by xz", "unxz"},
    {"\x28\xB5\x2F\xFD"sv, "compressed by zstd", "unzstd"},
    {"\xFF\xFE\x00\x00"sv, "UTF-32", "iconv -f utf-32 -t utf-8"},
    {"\xFF\xFE"sv, "UTF-16", kUtf16},
    {"\xFE\xFF"sv, "UTF-16", kUtf16},
};

[[noreturn]] void refuse(std::string_view label, std::string_view name, std::string_view cure) {
  throw UserError(fmt::format("{} is {}, not UTF-8 text; make text of it with '{}'", label, name, cure));
}

/// Whether every other byte of the first hundred is zero, as in UTF-16 of a European language without a mark.
bool looks_like_utf16(std::string_view bytes, std::size_t first) {
  const std::size_t end = std::min<std::size_t>(bytes.size(), 100);
  if (end < 4) return false;
  for (std::size_t i = 0; i < end; ++i) {
    if ((bytes[i] == '\0') != (i % 2 == first)) return false;
  }
  return true;
}

}  // namespace

std::string document_of(std::string bytes, std::string_view label) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  for (const Format& format : kFormats) {
    // "BZh" may begin a text.
    const bool starts = std::string_view(bytes).starts_with(format.begin);
    if (starts && (format.begin != "BZh" || text::find_invalid_utf8(bytes))) refuse(label, format.name, format.cure);
  }
  if (looks_like_utf16(bytes, 1)) refuse(label, "UTF-16", "iconv -f utf-16le -t utf-8");
  if (looks_like_utf16(bytes, 0)) refuse(label, "UTF-16", "iconv -f utf-16be -t utf-8");
  if (const auto offset = text::find_invalid_utf8(bytes)) {
    if (bytes.find('\0') != std::string::npos) {
      throw UserError(fmt::format("{} is binary: byte {} (0x{:02x}) begins no character of UTF-8; give a file of text",
                                  label, *offset, static_cast<unsigned char>(bytes[*offset])));
    }
    // Of Latin-1 nothing is said with certainty; Windows' kind of it has characters at 0x80 to 0x9f.
    const auto is_windows = [](char c) { return static_cast<unsigned char>(c) >> 5 == 4; };
    const bool windows = std::any_of(bytes.begin(), bytes.end(), is_windows);
    throw UserError(
        fmt::format("{} is not UTF-8: byte {} (0x{:02x}) begins no character; if it is {} text, convert it "
                    "with 'iconv -f {} -t utf-8'",
                    label, *offset, static_cast<unsigned char>(bytes[*offset]), windows ? "Windows-1252" : "Latin-1",
                    windows ? "cp1252" : "latin1"));
  }
  if (bytes.starts_with(kMark)) bytes.erase(0, kMark.size());
  return bytes;
}

}  // namespace glimpse::cli
