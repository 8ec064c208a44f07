// Answers to chats with tools, read into their content and calls by llama.cpp's parsers. What a model says is not
// trusted: a text that they do not read, or that nests too deeply, is no call. Const after construction; any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/chat_tools.h"

namespace glimpse::text {

struct ParsedAnswer {
  std::string content;
  std::vector<ToolCall> calls;  ///< arguments as text; ids where the model's format has them
};

class AnswerParser {
 public:
  /// Throws UserError for a format that cannot be read.
  explicit AnswerParser(const AnswerFormat& format);
  ~AnswerParser();

  /// `partial`: more may follow, and what may become something else is left out. Empty: it cannot be read.
  std::optional<ParsedAnswer> parse(std::string_view text, bool partial) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glimpse::text
