// Where a text may be cut: the boundary class of each token of a vocabulary, found once when it is built. Owns its
// table (one entry a token), keeps no reference to the tokenizer. Const members from any thread.
//
// Delimiters are LycheeCluster's (appendix B):
//   section   a blank line; --- *** ```; } ] >
//   sentence  . ? ! and their full-width forms; a newline
//   clause    , ; : and their full-width forms, the ideographic comma
//   space     space, tab
// A control token's text counts, so that "<|im_end|>" is a section.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "glimpse/base/boundary.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

/// The best delimiter that a piece of text contains.
Boundary boundary_of(std::string_view text);

class BoundaryClassifier {
 public:
  explicit BoundaryClassifier(const Tokenizer& tokenizer);

  int size() const { return static_cast<int>(entries_.size()); }
  /// The best delimiter that `token` contains, or ends when it began in `previous` (-1: none): a blank line, a rule or
  /// fence, or a character of several bytes that lies in two tokens.
  Boundary classify(Token previous, Token token) const;

 private:
  /// What a token is by itself, and what its ends add to its neighbours.
  struct Entry {
    Boundary own = Boundary::none;
    bool starts_with_newline = false;  ///< a newline with nothing but blanks before it
    bool ends_with_newline = false;    ///< a newline with nothing but blanks behind it
    std::uint8_t end_size = 0;         ///< bytes of `front`, of `back`
    char front[2] = {};                ///< the first bytes
    char back[2] = {};                 ///< the last bytes
  };

  std::vector<Entry> entries_;
};

}  // namespace glimpse::text
