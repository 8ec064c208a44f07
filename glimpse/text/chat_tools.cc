#include "glimpse/text/chat_tools.h"

#include <chat.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <map>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/text/json_grammar.h"

namespace glimpse::text {
namespace {

constexpr std::size_t kMemory = std::size_t{256} << 20;
// As a rendering without tools: what a template takes grows with its messages.
constexpr std::size_t kMemoryPerByte = 64;
constexpr std::size_t kBytesPerMillisecond = 4 * 1024;
constexpr std::size_t kMostText = std::size_t{8} << 20;  ///< bytes of a grammar or parser

enum class Outcome : std::uint8_t { made, refused, no_tools, no_calls };

// ---- In the child.

std::string packed(Outcome outcome, std::span<const std::string> texts) {
  std::string bytes(1, static_cast<char>(outcome));
  for (const std::string& text : texts) {
    const std::uint64_t size = text.size();
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += text;
  }
  return bytes;
}

common_chat_msg message_of(const ChatMessage& from) {
  common_chat_msg to;
  to.role = from.role;
  to.content = from.content;
  to.tool_name = from.name;
  to.tool_call_id = from.call_id;
  for (const ToolCall& call : from.calls) to.tool_calls.push_back({call.name, call.arguments, call.id});
  return to;
}

common_chat_templates_inputs inputs_of(std::span<const ChatMessage> messages, const ToolWish& wish,
                                       const std::map<std::string, bool>& caps) {
  common_chat_templates_inputs inputs;
  for (const ChatMessage& message : messages) inputs.messages.push_back(message_of(message));
  if (!wish.tools.empty()) inputs.tools = common_chat_tools_parse_oaicompat(common_json::parse(wish.tools));
  using Choice = ToolWish::Choice;
  inputs.tool_choice = wish.choice == Choice::none       ? COMMON_CHAT_TOOL_CHOICE_NONE
                       : wish.choice == Choice::required ? COMMON_CHAT_TOOL_CHOICE_REQUIRED
                                                         : COMMON_CHAT_TOOL_CHOICE_AUTO;
  const auto parallel = caps.find("supports_parallel_tool_calls");
  inputs.parallel_tool_calls = wish.parallel.value_or(parallel != caps.end() && parallel->second);
  inputs.add_generation_prompt = wish.add_generation_prompt;
  inputs.chat_template_kwargs.insert(wish.values.begin(), wish.values.end());
  const auto thinks = wish.values.find("enable_thinking");
  inputs.enable_thinking = thinks == wish.values.end() || thinks->second != "false";
  return inputs;
}

/// True where words of the template announce a call. Without them, as in Llama 3's bare JSON, llama.cpp leaves calls
/// that may be made free.
bool announces_calls(const common_chat_params& made) {
  return !made.grammar.empty() && std::all_of(made.grammar_triggers.begin(), made.grammar_triggers.end(),
                                              [](const common_grammar_trigger& each) {
                                                return each.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD &&
                                                       !each.value.empty();
                                              });
}

/// How the calls of an answer are held to their schemas.
struct CallRules {
  bool calls = false;    ///< there may be some
  bool by_name = false;  ///< one is known by the name of its function
  std::string grammar;   ///< by_name: that of calls which must be made
};
CallRules call_rules(const common_chat_templates* templates, std::span<const ChatMessage> messages,
                     const ToolWish& wish, const std::map<std::string, bool>& caps, const common_chat_params& made) {
  CallRules rules;
  rules.calls = !wish.tools.empty() && wish.choice != ToolWish::Choice::none;
  if (!rules.calls) return rules;
  rules.by_name = wish.choice == ToolWish::Choice::automatic && !announces_calls(made);
  if (!rules.by_name) {
    rules.grammar = made.grammar;
    return rules;
  }
  ToolWish required = wish;
  required.choice = ToolWish::Choice::required;
  rules.grammar = common_chat_templates_apply(templates, inputs_of(messages, required, caps)).grammar;
  return rules;
}

/// In the order in which the parent reads them.
std::vector<std::string> texts_of(const common_chat_params& made, const CallRules& rules,
                                  const std::vector<common_chat_tool>& tools) {
  std::vector<std::string> out{made.prompt, std::to_string(static_cast<int>(made.format)), made.generation_prompt,
                               rules.calls ? made.parser : "", rules.grammar};
  const auto add_list = [&](bool wanted, const auto& list, const auto& text) {
    out.push_back(std::to_string(wanted ? list.size() : 0));
    if (!wanted) return;
    for (const auto& each : list) out.push_back(text(each));
  };
  const auto itself = [](const std::string& text) { return text; };
  add_list(made.grammar_lazy && !rules.by_name, made.grammar_triggers,
           [](const common_grammar_trigger& each) { return each.value; });
  add_list(rules.by_name, tools, [](const common_chat_tool& each) { return each.name; });
  add_list(rules.calls, made.preserved_tokens, itself);
  add_list(rules.calls, made.additional_stops, itself);
  return out;
}

std::string rendered(const TemplateTexts& texts, std::span<const ChatMessage> messages, const ToolWish& wish) {
  try {
    const common_chat_templates_ptr templates =
        common_chat_templates_init(nullptr, std::string(texts.source), std::string(texts.bos), std::string(texts.eos));
    const std::map<std::string, bool> caps = common_chat_templates_get_caps(templates.get());
    if (!wish.tools.empty() && !caps.at("supports_tools")) return packed(Outcome::no_tools, {});
    const common_chat_templates_inputs inputs = inputs_of(messages, wish, caps);
    const common_chat_params made = common_chat_templates_apply(templates.get(), inputs);
    const CallRules rules = call_rules(templates.get(), messages, wish, caps, made);
    if (rules.calls && rules.grammar.empty()) return packed(Outcome::no_calls, {});
    return packed(Outcome::made, texts_of(made, rules, inputs.tools));
  } catch (const std::exception& error) {
    return packed(Outcome::refused, std::vector<std::string>{error.what()});
  }
}

// ---- In this process.

[[noreturn]] void fail_crash() {
  throw UserError("the model's chat template crashes the parser of its tool calls; leave the tools out");
}

/// The child may have overwritten its own memory: its answer is not trusted to be whole.
class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : bytes_(bytes) {
    if (bytes.empty() || bytes[0] < 0 || bytes[0] > static_cast<char>(Outcome::no_calls)) fail_crash();
    outcome = static_cast<Outcome>(bytes[0]);
    bytes_.remove_prefix(1);
  }
  std::string text() {
    std::uint64_t size = 0;
    if (bytes_.size() < sizeof size) fail_crash();
    std::memcpy(&size, bytes_.data(), sizeof size);
    bytes_.remove_prefix(sizeof size);
    if (size > bytes_.size()) fail_crash();
    std::string out(bytes_.substr(0, size));
    bytes_.remove_prefix(size);
    return out;
  }
  std::size_t number() {
    const std::string digits = text();
    if (digits.empty() || digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos)
      fail_crash();
    return std::stoul(digits);
  }
  std::vector<std::string> list() {
    std::vector<std::string> out;
    for (std::size_t left = number(); left > 0; --left) out.push_back(text());
    return out;
  }
  Outcome outcome;

 private:
  std::string_view bytes_;
};

/// One call alone, where each has tags of its own: llama.cpp's grammar takes several in any case.
void make_single(std::string& grammar) {
  constexpr std::string_view kSeveral = "tool-calls ::= (tool-call space)+";
  const std::size_t at = grammar.find(kSeveral);
  if (at != std::string::npos) grammar.replace(at, kSeveral.size(), "tool-calls ::= tool-call space");
}

[[noreturn]] void fail_end(ChildEnd end, const ChildLimits& limits) {
  switch (end) {
    case ChildEnd::time:
      throw UserError(fmt::format(
          "the tools take more than {:g} s to make a grammar and a prompt of; give fewer, or simpler schemas",
          static_cast<double>(limits.time.count()) / 1000));
    case ChildEnd::memory:
      throw UserError(fmt::format("the tools take more than {} MiB of memory; give fewer, or simpler schemas",
                                  limits.memory >> 20));
    case ChildEnd::stack:
      throw UserError("the tools' schemas or the model's chat template nest too deeply; flatten the schemas");
    case ChildEnd::answer:
    case ChildEnd::crash:
      break;
  }
  fail_crash();
}

}  // namespace

std::string without_content(const AnswerFormat& format) {
  constexpr std::string_view kRoot = "\nroot ::= ", kContent = " until-";
  std::string grammar = "\n" + format.grammar;
  const std::size_t root = grammar.find(kRoot);
  if (root == std::string::npos) return {};
  const std::size_t end = std::min(grammar.find('\n', root + 1), grammar.size());
  const std::size_t content = grammar.find(kContent, root);
  if (content >= end) return {};
  const std::size_t number = content + kContent.size();
  const std::size_t behind = grammar.find_first_not_of("0123456789", number);
  if (behind == number || behind >= end || grammar[behind] != '?') return {};
  grammar.erase(content, behind + 1 - content);
  return grammar;
}

ToolRendering render_with_tools(const TemplateTexts& texts, std::span<const ChatMessage> messages,
                                const ToolWish& wish) {
  std::size_t bytes = wish.tools.size();
  for (const ChatMessage& message : messages) {
    bytes += message.role.size() + message.content.size();
    for (const ToolCall& call : message.calls) bytes += call.name.size() + call.arguments.size();
  }
  const ChildLimits limits{wish.time + std::chrono::milliseconds(bytes / kBytesPerMillisecond),
                           kMemory + bytes * kMemoryPerByte};
  const ChildAnswer answer = run_in_child([&] { return rendered(texts, messages, wish); }, limits);
  if (answer.end != ChildEnd::answer) fail_end(answer.end, limits);
  Unpacker from(answer.bytes);
  switch (from.outcome) {
    case Outcome::no_tools:
      throw UserError("the model's chat template has no place for tools; leave them out, or take a model that has");
    case Outcome::no_calls:
      throw UserError("the calls that the model's chat template writes are not understood; leave the tools out");
    case Outcome::refused:
      throw UserError(fmt::format("the model's chat template refuses the messages or tools: {}; change them",
                                  printable(from.text().substr(0, 400))));
    case Outcome::made:
      break;
  }
  ToolRendering out;
  out.prompt = from.text();
  out.format.format = static_cast<int>(from.number());
  out.format.generation_prompt = from.text();
  out.format.parser = from.text();
  out.format.grammar = from.text();
  make_strict(out.format.grammar);
  if (wish.parallel == false) make_single(out.format.grammar);
  out.format.triggers = from.list();
  out.format.names = from.list();
  out.format.shown = from.list();
  out.format.stops = from.list();
  std::erase(out.format.stops, "");
  if (out.format.grammar.size() > kMostText || out.format.parser.size() > kMostText) {
    throw UserError(
        fmt::format("the tools come to a grammar of {} bytes; at most {} are taken; give fewer, or simpler "
                    "schemas",
                    std::max(out.format.grammar.size(), out.format.parser.size()), kMostText));
  }
  return out;
}

}  // namespace glimpse::text
