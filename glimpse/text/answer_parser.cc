#include "glimpse/text/answer_parser.h"

#include <chat.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/resources.h"
#include "glimpse/text/deep_stack.h"

namespace glimpse::text {
namespace {

// The parsers call themselves for each array and object inside another: about 4 KiB of stack a level.
constexpr std::ptrdiff_t kFewBrackets = 64, kMostBrackets = 1 << 14;
constexpr std::size_t kStackPerBracket = 16 << 10;

}  // namespace

struct AnswerParser::State {
  common_chat_parser_params params;

  std::optional<ParsedAnswer> parse(std::string_view text, bool partial) const {
    try {
      const AbortTrap trap("reading an answer");
      common_chat_msg read = common_chat_parse(std::string(text), partial, params);
      ParsedAnswer out{std::move(read.content), {}};
      for (common_chat_tool_call& call : read.tool_calls) {
        out.calls.push_back({std::move(call.id), std::move(call.name), std::move(call.arguments)});
      }
      return out;
    } catch (const std::exception&) {  // whatever it is: the text is no call then
      return std::nullopt;
    }
  }
};

AnswerParser::AnswerParser(const AnswerFormat& format) : state_(std::make_unique<State>()) {
  try {
    state_->params.format = static_cast<common_chat_format>(format.format);
    state_->params.generation_prompt = format.generation_prompt;
    if (!format.parser.empty()) state_->params.parser.load(format.parser);
  } catch (const std::exception&) {
    throw UserError("the calls that the model's chat template writes are not understood; leave the tools out");
  }
}

AnswerParser::~AnswerParser() = default;

std::optional<ParsedAnswer> AnswerParser::parse(std::string_view text, bool partial) const {
  const auto brackets = std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; });
  if (brackets <= kFewBrackets) return state_->parse(text, partial);
  if (brackets > kMostBrackets) return std::nullopt;
  std::optional<ParsedAnswer> out;
  const std::size_t stack = (std::size_t{1} << 20) + static_cast<std::size_t>(brackets) * kStackPerBracket;
  try {
    on_deep_stack(stack, [&] { out = state_->parse(text, partial); });
  } catch (const UserError&) {  // the machine does not give it
  }
  return out;
}

}  // namespace glimpse::text
