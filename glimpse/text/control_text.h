// The texts of a vocabulary's control tokens: finds those that the chat template wrote, and keeps those that a message
// holds from becoming tokens. Copies what it needs of the vocabulary. Const after construction; any thread may call.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/chat_template.h"
#include "glimpse/text/string_set.h"
#include "glimpse/text/tokenizer.h"

struct llama_vocab;

namespace glimpse::text {

class ControlText {
 public:
  explicit ControlText(const llama_vocab* vocab);

  /// A stretch of a rendering: a control token, or (token < 0) text to tokenise as text.
  struct Piece {
    Token token = -1;
    std::string text;
  };
  /// Control tokens are found only in runs of template text; text on both sides of a run's border stays together, so
  /// that merges over the border are those of the whole rendering.
  std::vector<Piece> split(std::span<const ChatPart> parts) const;

  /// The engine loses the mark of message text in some filters (split, join, tojson). So a code point that no message
  /// holds goes into each control text of the messages while the template runs. Empty: there is none to guard.
  std::string guard_messages(std::vector<ChatMessage>& messages) const;

 private:
  struct Entry {
    Token token;
    std::string text;
    bool strips_left, strips_right;  ///< the token swallows white space before, after it
  };
  struct Match {
    std::size_t begin, end;
    const Entry* entry;
  };
  void find(std::string_view text, std::size_t begin, std::size_t end, std::vector<Match>& matches) const;

  std::vector<Entry> entries_;  ///< longest first, as libllama matches them
  StringSet texts_;
};

/// Takes the guard out again.
void remove_guard(std::string& text, std::string_view guard);

}  // namespace glimpse::text
