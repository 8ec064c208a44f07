// Where a text may be cut so that SentencePiece tokens of the parts are those of the whole: between characters that no
// token of the vocabulary holds side by side. libllama's time grows with the square of the characters that have no
// token; in short parts it does not matter. Owns its tables. Const after construction; any thread may call.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

struct llama_vocab;

namespace glimpse::text {

class SentenceCuts {
 public:
  explicit SentenceCuts(const llama_vocab* vocab);

  /// The first cut of `text`, which is valid UTF-8, that leaves a part of some size before it, or its end. Throws
  /// UserError when the part would take seconds.
  std::size_t first(std::string_view text) const;

 private:
  std::vector<bool> held_;   ///< by code point: some token has it beside another character
  std::vector<bool> alone_;  ///< by code point: it is a token
};

}  // namespace glimpse::text
