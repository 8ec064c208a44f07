#include "glimpse/text/boundaries.h"

#include <algorithm>
#include <string>

#include "glimpse/base/error.h"

namespace glimpse::text {
namespace {

struct Delimiter {
  std::string_view text;
  Boundary boundary;
};

constexpr Delimiter kDelimiters[] = {
    {"}", Boundary::section},  {"]", Boundary::section},  {">", Boundary::section},   {".", Boundary::sentence},
    {"?", Boundary::sentence}, {"!", Boundary::sentence}, {"\n", Boundary::sentence}, {",", Boundary::clause},
    {";", Boundary::clause},   {":", Boundary::clause},   {" ", Boundary::space},     {"\t", Boundary::space},
};

/// Those that may begin in one token and end in the next; three bytes each.
constexpr Delimiter kLong[] = {
    {"---", Boundary::section},           {"***", Boundary::section},
    {"```", Boundary::section},           {"\xE3\x80\x82", Boundary::sentence},  // ideographic full stop
    {"\xEF\xBC\x9F", Boundary::sentence},                                        // full-width question mark
    {"\xEF\xBC\x81", Boundary::sentence},                                        // full-width exclamation mark
    {"\xEF\xBC\x8C", Boundary::clause},                                          // full-width comma
    {"\xEF\xBC\x9B", Boundary::clause},                                          // full-width semicolon
    {"\xEF\xBC\x9A", Boundary::clause},                                          // full-width colon
    {"\xE3\x80\x81", Boundary::clause},                                          // ideographic comma
};

constexpr std::string_view kBlanks = " \t\r";

bool has_blank_line(std::string_view text) {
  for (std::size_t at = text.find('\n'); at != std::string_view::npos; at = text.find('\n', at + 1)) {
    const std::size_t next = text.find_first_not_of(kBlanks, at + 1);
    if (next != std::string_view::npos && text[next] == '\n') return true;
  }
  return false;
}

}  // namespace

Boundary boundary_of(std::string_view text) {
  Boundary best = has_blank_line(text) ? Boundary::section : Boundary::none;
  for (const Delimiter& delimiter : kDelimiters) {
    if (text.find(delimiter.text) != std::string_view::npos) best = std::min(best, delimiter.boundary);
  }
  for (const Delimiter& delimiter : kLong) {
    if (text.find(delimiter.text) != std::string_view::npos) best = std::min(best, delimiter.boundary);
  }
  return best;
}

BoundaryClassifier::BoundaryClassifier(const Tokenizer& tokenizer) {
  entries_.resize(static_cast<std::size_t>(tokenizer.size()));
  for (Token token = 0; token < tokenizer.size(); ++token) {
    const std::string piece = tokenizer.piece(token, true);
    Entry& entry = entries_[static_cast<std::size_t>(token)];
    entry.own = boundary_of(piece);
    const std::size_t first = piece.find_first_not_of(kBlanks);
    const std::size_t last = piece.find_last_not_of(kBlanks);
    entry.starts_with_newline = first != std::string::npos && piece[first] == '\n';
    entry.ends_with_newline = last != std::string::npos && piece[last] == '\n';
    const std::size_t size = std::min<std::size_t>(2, piece.size());
    entry.end_size = static_cast<std::uint8_t>(size);
    std::copy_n(piece.begin(), size, entry.front);
    std::copy_n(piece.end() - static_cast<std::ptrdiff_t>(size), size, entry.back);
  }
}

Boundary BoundaryClassifier::classify(Token previous, Token token) const {
  check(token >= 0 && token < size() && previous >= -1 && previous < size(),
        "tokens are of the classifier's vocabulary");
  const Entry& entry = entries_[static_cast<std::size_t>(token)];
  if (previous < 0) return entry.own;
  const Entry& before = entries_[static_cast<std::size_t>(previous)];
  Boundary best = entry.own;
  if (before.ends_with_newline && entry.starts_with_newline) best = Boundary::section;
  char joint[4];
  std::copy_n(before.back, before.end_size, joint);
  std::copy_n(entry.front, entry.end_size, joint + before.end_size);
  const std::string_view text(joint, static_cast<std::size_t>(before.end_size) + entry.end_size);
  for (const Delimiter& delimiter : kLong) {
    // Three bytes within two and two lie in both tokens.
    if (text.find(delimiter.text) != std::string_view::npos) best = std::min(best, delimiter.boundary);
  }
  return best;
}

}  // namespace glimpse::text
