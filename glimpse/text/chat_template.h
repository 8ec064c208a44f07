// A model's Jinja chat template, run by llama.cpp's engine, which bounds neither time nor memory nor depth: each
// rendering has a child process of its own, and this process never reads the template. Owns copies of its texts; any
// thread may render.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

/// A run of the rendering: the template's own text, or text that came in a message.
struct ChatPart {
  bool from_message = false;
  std::string text;
};

/// What a rendering may take. Both grow with the messages, which the template's author does not choose.
struct ChatLimits {
  std::int64_t milliseconds = 2000;
  std::size_t memory = std::size_t{256} << 20;
};

struct RenderWish {
  bool add_generation_prompt = true;
  TemplateValues values;  ///< beside those that every template has, or in their place
};

class ChatTemplate {
 public:
  /// `bos` and `eos` are the texts of these tokens, empty where there are none. Reads nothing of `source`.
  ChatTemplate(std::string source, std::string bos, std::string eos, const ChatLimits& limits = {});
  ~ChatTemplate();

  /// Throws UserError when the source is no template, when a limit is exceeded, or with the template's own message
  /// when it refuses.
  std::vector<ChatPart> render(std::span<const ChatMessage> messages, const RenderWish& wish) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glimpse::text
