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
constexpr std::ptrdiff_t kFewLevels = 64, kMostLevels = 1 << 14;
constexpr std::size_t kStackPerLevel = 16 << 10;

/// Levels that are open for those who began to read somewhere in a text, the most of each kind of them; -1: there are
/// none. What is a string's for one who began before it is none for one who began inside it.
struct OpenLevels {
  struct InString {
    char quote;
    std::ptrdiff_t levels = -1, escaped = -1;  ///< escaped: of those behind a backslash
  };
  std::ptrdiff_t outside = 0;  ///< of a string; who begins here has none
  InString strings[2] = {{'"'}, {'\''}};

  void read(char c) {
    // Outside of strings JSON and Python's literals have these alone: who meets another one reads no further.
    if (std::string_view(" \t\r\n0123456789+-.,:[]{}\"'truefalsnoETFN").find(c) == std::string_view::npos) outside = 0;
    const std::ptrdiff_t before = outside;
    if (c == '[' || c == '{') ++outside;
    if (c == ']' || c == '}') outside = std::max<std::ptrdiff_t>(outside - 1, 0);
    for (InString& in : strings) {
      const std::ptrdiff_t stay = in.levels, back = in.escaped;
      in.escaped = c == '\\' ? stay : -1;
      in.levels = std::max(back, c == in.quote ? before : c == '\\' ? -1 : stay);
      if (c == in.quote) outside = std::max<std::ptrdiff_t>(stay, 0);
    }
  }
};

/// A bound of the arrays and objects that lie inside each other, wherever a parser begins to read them.
std::ptrdiff_t deepest(std::string_view text) {
  OpenLevels open;
  std::ptrdiff_t most = 0;
  for (const char c : text) {
    open.read(c);
    most = std::max(most, open.outside);
  }
  return most;
}

}  // namespace

struct AnswerParser::Impl {
  common_chat_parser_params params;
  bool quotes = true;  ///< strings begin and end with a quote, as in JSON and Python

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

AnswerParser::AnswerParser(const AnswerFormat& format) : impl_(std::make_unique<Impl>()) {
  try {
    impl_->params.format = static_cast<common_chat_format>(format.format);
    impl_->params.generation_prompt = format.generation_prompt;
    if (!format.parser.empty()) impl_->params.parser.load(format.parser);
    impl_->quotes = format.parser.find("gemma4-string") == std::string::npos;
  } catch (const std::exception&) {
    throw UserError("the calls that the model's chat template writes are not understood; leave the tools out");
  }
}

AnswerParser::~AnswerParser() = default;

std::optional<ParsedAnswer> AnswerParser::parse(std::string_view text, bool partial) const {
  const std::ptrdiff_t levels =
      impl_->quotes ? deepest(text)
                    : std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; });
  if (levels <= kFewLevels) return impl_->parse(text, partial);
  if (levels > kMostLevels) return std::nullopt;
  std::optional<ParsedAnswer> out;
  const std::size_t stack = (std::size_t{1} << 20) + static_cast<std::size_t>(levels) * kStackPerLevel;
  try {
    on_deep_stack(stack, [&] { out = impl_->parse(text, partial); });
  } catch (const UserError&) {  // the machine does not give it
  }
  return out;
}

}  // namespace glimpse::text
