#include "glimpse/text/chat_template.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <jinja/caps.h>
#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <json.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/base/printable.h"
#include "glimpse/text/child_process.h"
#include "glimpse/text/utf8.h"

namespace glimpse::text {
namespace {

// A template of a model that is in use takes a few milliseconds for each MiB of text and copies it less than ten times.
constexpr std::size_t kMemoryPerByte = 32;
constexpr std::size_t kBytesPerMillisecond = 16 * 1024;

/// What a template makes of messages, as llama.cpp finds out by running it on a few.
struct Caps {
  bool system_role = true, string_content = true, typed_content = false;
};

/// All that a rendering reads. The child has it because it is a copy of this process.
struct Input {
  const std::string& source;
  std::span<const ChatMessage> messages;
  std::optional<Caps> caps;
  common_json given;
};

enum class Outcome : std::uint8_t { rendered, unreadable, refused };

/// What the child answers. Bytes of one process for its copy, so no byte order matters.
struct Rendering {
  Outcome outcome = Outcome::refused;
  Caps caps;
  std::vector<ChatPart> parts;  ///< or one, the error's text
};

template <class T>
void put(std::string& bytes, const T& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

[[noreturn]] void fail_crash() {
  throw UserError("the model's chat template crashes the engine that runs it; use --raw");
}

/// The child may have overwritten its own memory: its answer is not trusted to be whole.
template <class T>
T take(std::string_view& bytes) {
  if (bytes.size() < sizeof(T)) fail_crash();
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

std::string packed(const Rendering& rendering) {
  std::string bytes;
  put(bytes, static_cast<char>(rendering.outcome));
  for (const bool flag : {rendering.caps.system_role, rendering.caps.string_content, rendering.caps.typed_content}) {
    put(bytes, static_cast<char>(flag));
  }
  for (const ChatPart& part : rendering.parts) {
    put(bytes, static_cast<char>(part.from_message));
    put(bytes, part.text.size());
    bytes += part.text;
  }
  return bytes;
}

Rendering unpacked(std::string_view bytes) {
  Rendering rendering;
  const char outcome = take<char>(bytes);
  if (outcome < 0 || outcome > static_cast<char>(Outcome::refused)) fail_crash();
  rendering.outcome = static_cast<Outcome>(outcome);
  for (bool* flag : {&rendering.caps.system_role, &rendering.caps.string_content, &rendering.caps.typed_content}) {
    *flag = take<char>(bytes) != 0;
  }
  while (!bytes.empty()) {
    const bool from_message = take<char>(bytes) != 0;
    const auto size = take<std::size_t>(bytes);
    if (size > bytes.size()) fail_crash();
    rendering.parts.push_back({from_message, std::string(bytes.substr(0, size))});
    bytes.remove_prefix(size);
  }
  if (rendering.outcome != Outcome::rendered && rendering.parts.size() != 1) fail_crash();
  return rendering;
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
  if (out.size() > 1) out[1].content = out[0].content + "\n" + out[1].content;
  out.erase(out.begin());
  return out;
}

/// What llama.cpp's server gives a template; what is not set stays undefined, which templates ask for.
common_json given_values(const std::string& bos, const std::string& eos, const RenderWish& wish) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  common_json given = common_json::object();
  given["bos_token"] = bos;
  given["eos_token"] = eos;
  given["enable_thinking"] = true;
  given["datetime"] = fmt::format("{:%b %d %Y}", local);
  given["date_string"] = fmt::format("{:%d %b %Y}", local);
  for (const auto& [name, value] : wish.values) given[name] = common_json::parse(value);
  if (wish.add_generation_prompt) given["add_generation_prompt"] = true;
  return given;
}

// ---- In the child.

std::vector<ChatPart> execute(const jinja::program& program, const std::string& source, const Input& input,
                              const Caps& caps) {
  std::vector<ChatMessage> merged;
  std::span<const ChatMessage> messages = input.messages;
  if (!caps.system_role) {
    merged = without_system(messages);
    messages = merged;
  }
  common_json list = common_json::array();
  const bool typed = !caps.string_content && caps.typed_content;
  for (const ChatMessage& message : messages) list.push_back(message_json(message, typed));
  common_json values = common_json::object();
  values["messages"] = list;

  jinja::context context(source);
  jinja::global_from_json(context, input.given, false);
  jinja::global_from_json(context, values, true);
  jinja::runtime runtime(context);
  const auto gathered = jinja::runtime::gather_string_parts(runtime.execute(program));
  std::vector<ChatPart> parts;
  for (jinja::string_part& part : gathered->val_str.parts) parts.push_back({part.is_input, std::move(part.val)});
  return parts;
}

Rendering rendering_of(const Input& input) {
  Rendering rendering;
  rendering.outcome = Outcome::unreadable;
  try {
    jinja::lexer lexer;
    const jinja::lexer_result tokens = lexer.tokenize(input.source);
    jinja::program program = jinja::parse_from_tokens(tokens);
    if (input.caps) {
      rendering.caps = *input.caps;
    } else {
      const jinja::caps caps = jinja::caps_get(program);
      rendering.caps = {caps.supports_system_role, caps.supports_string_content, caps.supports_typed_content};
    }
    rendering.outcome = Outcome::refused;
    rendering.parts = execute(program, tokens.source, input, rendering.caps);
    rendering.outcome = Outcome::rendered;
  } catch (const std::exception& error) {
    rendering.parts = {{false, error.what()}};
  }
  return rendering;
}

// ---- In this process.

/// The engine's errors show the source over several lines. What is wrong, and where, in one.
std::string one_line(std::string_view text) {
  constexpr std::size_t kLongest = 400;
  constexpr std::string_view kWhere = "\nWhile executing ", kWhat = "\nError: ";
  std::string where;
  const std::size_t begin = text.find(kWhere), what = text.find(kWhat);
  if (begin != std::string_view::npos && what != std::string_view::npos && begin < what) {
    const std::string_view head = text.substr(begin + kWhere.size(), what - begin);
    const std::size_t at = head.find(" at "), in = head.find(" in source");
    if (at < in && in != std::string_view::npos)
      where = fmt::format(" ({})", printable(head.substr(at + 4, in - at - 4)));
    text.remove_prefix(what + kWhat.size());
  }
  const std::size_t last = text.rfind('\n');  // a line that only points into the one before
  if (last != std::string_view::npos && text.find_first_not_of(" ^", last + 1) == std::string_view::npos) {
    text = text.substr(0, last);
  }
  std::string line(text.substr(0, kLongest));
  while (const auto bad = find_invalid_utf8(line)) {  // of the template, or where the engine cut it, or the line above
    line.replace(*bad, utf8_head(std::string_view(line).substr(*bad)).length, "?");
  }
  if (text.size() > kLongest) line += "...";
  std::replace(line.begin(), line.end(), '\n', ' ');
  return printable(line) + where;
}

[[noreturn]] void fail_end(ChildEnd end, const ChildLimits& limits) {
  switch (end) {
    case ChildEnd::time:
      throw UserError(fmt::format("the model's chat template runs for more than {:g} s; use --raw",
                                  static_cast<double>(limits.time.count()) / 1000));
    case ChildEnd::memory:
      throw UserError(
          fmt::format("the model's chat template takes more than {} MiB of memory; use --raw", limits.memory >> 20));
    case ChildEnd::stack:
      throw UserError(
          fmt::format("the model's chat template nests or recurses deeper than {} MiB of stack hold; use --raw",
                      kChildStack >> 20));
    case ChildEnd::answer:
    case ChildEnd::crash:
      break;
  }
  fail_crash();
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source, bos, eos;
  ChatLimits limits;
  std::mutex mutex;
  std::optional<Caps> caps;  ///< from the first rendering on; under the mutex
};

ChatTemplate::ChatTemplate(std::string source, std::string bos, std::string eos, const ChatLimits& limits)
    : impl_(std::make_unique<Impl>()) {
  impl_->source = std::move(source);
  impl_->bos = std::move(bos);
  impl_->eos = std::move(eos);
  impl_->limits = limits;
}

ChatTemplate::~ChatTemplate() = default;

std::vector<ChatPart> ChatTemplate::render(std::span<const ChatMessage> messages, const RenderWish& wish) const {
  Input input{impl_->source, messages, {}, given_values(impl_->bos, impl_->eos, wish)};
  {
    const std::lock_guard lock(impl_->mutex);
    input.caps = impl_->caps;
  }
  std::size_t bytes = 0;
  for (const ChatMessage& message : messages) bytes += message.role.size() + message.content.size();
  for (const auto& [name, value] : wish.values) bytes += name.size() + value.size();
  const ChildLimits limits{
      std::chrono::milliseconds(impl_->limits.milliseconds + static_cast<std::int64_t>(bytes / kBytesPerMillisecond)),
      impl_->limits.memory + bytes * kMemoryPerByte};
  const ChildAnswer answer = run_in_child([&input] { return packed(rendering_of(input)); }, limits);
  if (answer.end != ChildEnd::answer) fail_end(answer.end, limits);

  Rendering rendering = unpacked(answer.bytes);
  if (rendering.outcome == Outcome::unreadable) {
    throw UserError(
        fmt::format("the model's chat template cannot be read: {}; use --raw", one_line(rendering.parts.front().text)));
  }
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->caps = rendering.caps;
  }
  if (!rendering.caps.system_role && messages.size() == 1 && messages.front().role == "system") {
    log_message(LogLevel::warning, "the model's chat template has no system turn; the system message is left out");
  }
  if (rendering.outcome == Outcome::refused) {
    throw UserError(fmt::format("the model's chat template refuses the messages: {}; change them, or use --raw",
                                one_line(rendering.parts.front().text)));
  }
  return std::move(rendering.parts);
}

}  // namespace glimpse::text
