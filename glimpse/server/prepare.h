// From a body to what the engine is asked: fields, chat template, tokens, plan. Slow (a long text takes seconds), so it
// runs in the pool. Any thread; throws ApiError and UserError.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/engine/request.h"
#include "glimpse/server/backend.h"
#include "glimpse/server/fields.h"
#include "glimpse/server/watch_record.h"
#include "glimpse/text/answer_parser.h"

namespace glimpse::server {

/// A prompt as a completion may echo it.
struct EchoedPrompt {
  std::string text;
  std::vector<text::Token> tokens;
};

struct Prepared {
  bool chat = false, stream = false, include_usage = false, return_progress = false;
  std::vector<std::string> ignored;
  std::string policy;        ///< of the first prompt's plan
  std::int64_t choices = 1;  ///< of each prompt
  bool logprobs = false;
  std::vector<EchoedPrompt> echoed;                  ///< [prompts], or none
  std::shared_ptr<WatchRecord> watch;                ///< or none
  std::shared_ptr<const text::AnswerParser> parser;  ///< of a chat whose answers may call tools, or none
  std::vector<engine::Request> requests;             ///< [prompts], each with the seed of its first choice
};

/// True where the prompt of a chat is made with tools, calls or their answers.
bool has_tools(const Wanted& wanted);
text::ToolWish tool_wish(const Wanted& wanted, const Limits& limits);

Prepared prepare(std::string_view body, FieldPlace place, const Backend& backend, const Limits& limits);

}  // namespace glimpse::server
