// Chats with tools: what llama.cpp's chat parsers find out about a model's template by running it, and the prompt that
// comes of it. They bound neither time nor memory, so each call has a child process of its own. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/text/child_process.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::text {

struct ToolWish {
  enum class Choice : std::uint8_t { none, automatic, required } choice = Choice::automatic;
  std::string tools;             ///< a JSON array as OpenAI has it, checked by the caller; empty: none
  std::optional<bool> parallel;  ///< several calls in one answer; unset: where the template has them
  TemplateValues values;
  std::chrono::milliseconds time{1000};
  bool add_generation_prompt = true;
};

/// How answers are read, and what holds them to it.
struct AnswerFormat {
  int format = 0;      ///< llama.cpp's number of it
  std::string parser;  ///< llama.cpp's text of it; empty: the answer is its own content
  std::string generation_prompt;
  std::string grammar;                ///< GBNF; empty: none
  std::vector<std::string> triggers;  ///< the grammar waits for one of these; none: it holds from the beginning
  std::vector<std::string> names;     ///< instead of triggers: as GrammarWish::names
  std::vector<std::string> shown;     ///< texts of control tokens that belong to an answer's text
  std::vector<std::string> stops;
};

struct ToolRendering {
  std::string prompt;
  AnswerFormat format;
};

struct TemplateTexts {
  std::string_view source, bos, eos;
};

/// The format's grammar without the content that llama.cpp lets come before a call that is required; empty where there
/// is none.
std::string without_content(const AnswerFormat& format);

/// Throws UserError: a template that has no place for tools or whose calls are not understood, messages that it
/// refuses, a limit that is exceeded.
ToolRendering render_with_tools(const TemplateTexts& texts, std::span<const ChatMessage> messages,
                                const ToolWish& wish);

}  // namespace glimpse::text
