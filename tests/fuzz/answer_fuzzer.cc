// Answers of models to chats with tools, read whole and in parts as a stream reads them: nothing that a model says ends
// in a crash, and what was told is never taken back. The corpus starts from what answer_seeds writes.
//
// The first byte of an input says which template's calls are read, and how the text comes in.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/server/tool_answer.h"
#include "glimpse/text/answer_parser.h"
#include "glimpse/text/chat_tools.h"
#include "tests/support/places.h"

using namespace glimpse;

namespace {

std::shared_ptr<const text::AnswerParser> parser_of(const char* name) {
  std::ifstream file(test::source_root() / "tests/support/templates" / (std::string(name) + ".jinja"));
  const std::string source{std::istreambuf_iterator<char>(file), {}};
  const text::ToolWish wish{text::ToolWish::Choice::automatic,
                            R"([{"type": "function", "function": {"name": "tide", "parameters": {"type": "object",
                                 "properties": {"harbour": {"type": "string"}, "hours": {"type": "array"}}}}},
                                {"type": "function", "function": {"name": "wind"}}])",
                            true,
                            {},
                            std::chrono::seconds(60)};
  const std::vector<text::ChatMessage> messages{{"user", "x"}};
  return std::make_shared<const text::AnswerParser>(
      text::render_with_tools({source, "<s>", "</s>"}, messages, wish).format);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::vector<std::shared_ptr<const text::AnswerParser>> parsers{parser_of("hermes"), parser_of("llama3")};
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto& parser = parsers[data[0] % parsers.size()];
  server::ToolAnswer streamed(parser);
  std::string content;
  std::vector<std::string> arguments;
  const auto take = [&](bool ended) {
    for (const server::ToolDelta& delta : streamed.take(ended)) {
      if (delta.call < 0) {
        content += delta.content;
        continue;
      }
      if (delta.begins != (static_cast<std::size_t>(delta.call) == arguments.size())) std::abort();
      if (delta.begins) arguments.emplace_back();
      arguments.at(static_cast<std::size_t>(delta.call)) += delta.arguments;
    }
  };
  const std::size_t step = 1 + data[0] / 16;
  for (std::size_t at = 0; at < text.size(); at += step) {
    streamed.add(text.substr(at, step));
    take(false);
  }
  take(true);
  const text::ParsedAnswer& told = streamed.told();
  if (told.content != content || told.calls.size() != arguments.size()) std::abort();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (told.calls[i].arguments != arguments[i] || told.calls[i].id.empty()) std::abort();
  }
  return 0;
}
