// The texts of a vocabulary's tokens as a tree of bytes: what a grammar is held against. Const after construction; any
// thread may read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

/// Tokens by their ids, as bits.
class TokenSet {
 public:
  explicit TokenSet(std::size_t tokens) : bits_((tokens + 63) / 64) {}
  void add(Token token) { bits_[index(token)] |= bit(token); }
  bool has(Token token) const { return index(token) < bits_.size() && (bits_[index(token)] & bit(token)) != 0; }

 private:
  static std::size_t index(Token token) { return static_cast<std::size_t>(token) / 64; }
  static std::uint64_t bit(Token token) { return std::uint64_t{1} << (static_cast<unsigned>(token) % 64); }
  std::vector<std::uint64_t> bits_;
};

class TokenTexts {
 public:
  /// `texts` of all tokens; an empty one is never text of an answer, nor is that of `ends`, tokens that end a text.
  TokenTexts(std::vector<std::string> texts, const std::vector<Token>& ends);

  /// A byte of one or more texts. Those that begin alike lie together: behind a node its children, each with its own.
  struct Node {
    std::uint8_t byte = 0;
    std::uint32_t depth = 0;                    ///< bytes before it
    std::uint32_t skip = 0;                     ///< the next node that is none of its children
    std::uint32_t first_token = 0, tokens = 0;  ///< of tokens(): whose texts end here
  };
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Token>& tokens() const { return tokens_; }
  std::string_view text(Token token) const { return texts_[static_cast<std::size_t>(token)]; }
  std::size_t size() const { return texts_.size(); }

 private:
  std::vector<std::string> texts_;
  std::vector<Node> nodes_;
  std::vector<Token> tokens_;
};

}  // namespace glimpse::text
