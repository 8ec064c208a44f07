// A model's Jinja chat template, run by llama.cpp's engine. Owns the parsed program. Const after construction; any
// thread may render.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

/// A run of the rendering: the template's own text, or text that came in a message.
struct ChatPart {
  bool from_message = false;
  std::string text;
};

class ChatTemplate {
 public:
  /// `bos` and `eos` are the texts of these tokens, empty where there are none. Throws UserError when the source is
  /// no template.
  ChatTemplate(std::string_view source, std::string bos, std::string eos);
  ~ChatTemplate();

  /// Throws UserError with the template's own message when it refuses.
  std::vector<ChatPart> render(std::span<const ChatMessage> messages, bool add_generation_prompt) const;

 private:
  struct Program;
  std::unique_ptr<Program> program_;
};

}  // namespace glimpse::text
