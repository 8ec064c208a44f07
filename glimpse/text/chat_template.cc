#include "glimpse/text/chat_template.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <jinja/caps.h>
#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <json.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"

namespace glimpse::text {
namespace {

// The engine's parser recurses, so a template of brackets alone could use up the stack. The longest template known
// to us has 20 kB and nests 8 deep.
constexpr std::size_t kMaxSource = 1u << 20;
constexpr int kMaxNesting = 200;

void check_source(std::string_view source) {
  if (source.size() > kMaxSource) {
    throw UserError(fmt::format("the model's chat template has {} bytes; at most {} are taken; use --raw",
                                source.size(), kMaxSource));
  }
  int depth = 0, deepest = 0, blocks = 0;
  for (std::size_t i = 0; i < source.size(); ++i) {
    const char c = source[i];
    if (c == '(' || c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ')' || c == ']' || c == '}') depth = std::max(0, depth - 1);
    const std::string_view rest = source.substr(i, 16);
    if (c != '{' || !rest.starts_with("{%")) continue;
    const std::size_t word = rest.find_first_not_of("{%- ");
    if (word == std::string_view::npos) continue;
    const std::string_view name = rest.substr(word);
    if (name.starts_with("if ") || name.starts_with("for ") || name.starts_with("macro ")) ++blocks;
    if (name.starts_with("endif") || name.starts_with("endfor") || name.starts_with("endmacro")) --blocks;
    deepest = std::max(deepest, blocks);
  }
  if (deepest > kMaxNesting) {
    throw UserError(
        fmt::format("the model's chat template nests {} deep; at most {} is taken; use --raw", deepest, kMaxNesting));
  }
}

common_json message_json(const ChatMessage& message, bool typed) {
  common_json json = common_json::object();
  json["role"] = message.role;
  if (typed) {
    common_json part = common_json::object();
    part["type"] = "text";
    part["text"] = message.content;
    common_json parts = common_json::array();
    parts.push_back(part);
    json["content"] = parts;
  } else {
    json["content"] = message.content;
  }
  return json;
}

/// As llama.cpp does for a template that knows no system turn: its text goes before that of the next message.
std::vector<ChatMessage> without_system(std::span<const ChatMessage> messages) {
  std::vector<ChatMessage> out(messages.begin(), messages.end());
  if (out.empty() || out.front().role != "system") return out;
  if (out.size() == 1) {
    log_message(LogLevel::warning, "the model's chat template has no system turn; the system message is left out");
  } else {
    out[1].content = out[0].content + "\n" + out[1].content;
  }
  out.erase(out.begin());
  return out;
}

}  // namespace

struct ChatTemplate::Program {
  std::string source;
  std::string bos, eos;
  jinja::program program;
  jinja::caps caps;
};

ChatTemplate::ChatTemplate(std::string_view source, std::string bos, std::string eos)
    : program_(std::make_unique<Program>()) {
  check_source(source);
  program_->bos = std::move(bos);
  program_->eos = std::move(eos);
  try {
    jinja::lexer lexer;
    const jinja::lexer_result tokens = lexer.tokenize(std::string(source));
    program_->program = jinja::parse_from_tokens(tokens);
    program_->source = tokens.source;
    program_->caps = jinja::caps_get(program_->program);
  } catch (const std::exception& error) {
    throw UserError(fmt::format("the model's chat template cannot be read: {}; use --raw", error.what()));
  }
}

ChatTemplate::~ChatTemplate() = default;

std::vector<ChatPart> ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt) const {
  const jinja::caps& caps = program_->caps;
  std::vector<ChatMessage> merged;
  if (!caps.supports_system_role) {
    merged = without_system(messages);
    messages = merged;
  }
  std::vector<ChatPart> parts;
  try {
    common_json list = common_json::array();
    const bool typed = !caps.supports_string_content && caps.supports_typed_content;
    for (const ChatMessage& message : messages) list.push_back(message_json(message, typed));
    common_json input = common_json::object();
    input["messages"] = list;

    // What llama.cpp's server gives a template; what is not set stays undefined, which templates ask for.
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    common_json given = common_json::object();
    given["bos_token"] = program_->bos;
    given["eos_token"] = program_->eos;
    given["enable_thinking"] = true;
    given["datetime"] = fmt::format("{:%b %d %Y}", local);
    given["date_string"] = fmt::format("{:%d %b %Y}", local);
    if (add_generation_prompt) given["add_generation_prompt"] = true;

    jinja::context context(program_->source);
    jinja::global_from_json(context, given, false);
    jinja::global_from_json(context, input, true);
    jinja::runtime runtime(context);
    const auto gathered = jinja::runtime::gather_string_parts(runtime.execute(program_->program));
    for (jinja::string_part& part : gathered->val_str.parts) parts.push_back({part.is_input, std::move(part.val)});
  } catch (const std::exception& error) {
    throw UserError(
        fmt::format("the model's chat template refuses the messages: {}; change them, or use --raw", error.what()));
  }
  return parts;
}

}  // namespace glimpse::text
