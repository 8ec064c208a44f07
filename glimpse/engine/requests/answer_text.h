// The text of an answer as it is handed out: held back while it may be the beginning of a stop string, and cut where
// one begins. Where it ends depends on the bytes alone, not on how tokens divide them. A value; one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

class AnswerText {
 public:
  AnswerText() = default;
  /// Of `stops` none is empty. Those count that begin behind the first `least` tokens.
  explicit AnswerText(std::vector<std::string> stops, std::int64_t least = 0)
      : stops_(std::move(stops)), before_stops_(least) {}

  struct Piece {
    text::Token token = -1;
    std::string bytes;  ///< without what belongs to a stop string
  };

  /// Takes the answer's next token. True when its bytes complete a stop string (of several the one that is complete
  /// first): what lies before that string is ready then, and the token is none of the answer.
  bool add(text::Token token, std::string_view bytes);
  /// The answer ends without a stop string: everything is ready.
  void finish();

  /// Tokens that became ready since the last call, in order. A token is ready with its last byte.
  std::vector<Piece> take_tokens();
  /// Text that became ready, in whole UTF-8 sequences; bytes that are none come as U+FFFD.
  std::string take_text();

 private:
  /// Makes the first `bytes` of what is held ready.
  void release(std::size_t bytes);

  std::vector<std::string> stops_;
  std::int64_t before_stops_ = 0;  ///< tokens to come before stop strings count
  std::vector<Piece> held_, ready_;
  std::string tail_;       ///< bytes of held_
  std::size_t given_ = 0;  ///< of tail_ that are in text_
  std::string text_;
  text::Utf8Stream whole_;
};

}  // namespace glimpse::engine
