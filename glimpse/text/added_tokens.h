// Tokens whose text is cut out of a text before anything else: control tokens where they are wanted, and what the
// model's makers added ("user-defined"). The same pieces as libllama's, whose own search takes time in the square of
// how many there are. Copies what it needs of the vocabulary. Const after construction; any thread may call.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/string_set.h"
#include "glimpse/text/tokenizer.h"

struct llama_vocab;

namespace glimpse::text {

class AddedTokens {
 public:
  explicit AddedTokens(const llama_vocab* vocab);

  /// A token, or (token < 0) the bytes of text between two.
  struct Piece {
    std::size_t begin = 0, end = 0;
    Token token = -1;
  };
  std::vector<Piece> split(std::string_view text, Special special) const;

  /// Whether a token that is no control token begins the text: libllama would cut it out.
  bool begins(std::string_view text) const;

 private:
  struct Entry {
    Token token;
    std::string text;
    bool is_control;
    bool strips_left, strips_right;  ///< the token swallows white space before, after it
  };
  std::vector<Entry> entries_;  ///< longest first, as libllama matches them
  StringSet texts_;
};

}  // namespace glimpse::text
