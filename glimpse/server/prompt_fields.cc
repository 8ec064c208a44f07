#include "glimpse/server/prompt_fields.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "glimpse/base/printable.h"
#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

constexpr std::int64_t kArgumentsDepth = 64;  ///< arrays and objects inside each other

std::string path_of(std::string_view field, std::size_t index, std::string_view key) {
  return fmt::format("{}[{}].{}", field, index, key);
}

/// A text, or the texts of a list of parts, each in a line of its own.
std::string content_of(const Body& message, const std::string& path) {
  const auto found = message.find("content");
  if (found == message.end() || found->is_null()) return {};
  if (found->is_string()) return found->get<std::string>();
  if (!found->is_array()) throw bad_field(path, "must be a text or a list of parts");
  std::string text;
  for (const Body& part : *found) {
    const auto words = part.is_object() ? part.find("text") : part.end();
    if (!part.is_object() || part.value("type", Body()) != "text" || words == part.end() || !words->is_string()) {
      throw bad_field(path, "has a part that is no text; this server reads {type: \"text\", text} alone");
    }
    if (&part != &found->front()) text += '\n';
    text += words->get<std::string>();
  }
  return text;
}

/// A member that is a text; empty where it is missing.
std::string text_of(const Body& object, const char* name, const std::string& path) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  if (!found->is_string()) throw bad_field(path, "must be a text");
  return found->get<std::string>();
}

/// Arguments are written anew, so that no escape hides what they hold, in the order in which the model said them.
std::string arguments_of(const Body& function, const std::string& path) {
  const auto found = function.find("arguments");
  if (found == function.end() || found->is_null()) return "{}";
  if (found->is_object()) return found->dump();
  if (!found->is_string()) throw bad_field(path, "must be a text, JSON");
  const auto text = found->get<std::string>();
  if (text.empty()) return "{}";
  try {
    parse_json(text, kArgumentsDepth);
    return compact_text(text);
  } catch (const ApiError&) {
    throw bad_field(path, fmt::format("is no JSON, or nests deeper than {}", kArgumentsDepth));
  }
}

std::vector<text::ToolCall> calls_of(const Body& message, const std::string& path) {
  const auto found = message.find("tool_calls");
  if (found == message.end() || found->is_null()) return {};
  if (!found->is_array()) throw bad_field(path, "must be a list");
  std::vector<text::ToolCall> calls;
  for (const Body& each : *found) {
    const Body function = each.is_object() ? each.value("function", Body()) : Body();
    if (!function.is_object())
      throw bad_field(path, "must be a list of {id, type: \"function\", function: {name, arguments}}");
    text::ToolCall call{text_of(each, "id", path), text_of(function, "name", path), arguments_of(function, path)};
    if (call.name.empty()) throw bad_field(path, "has a call without a name");
    calls.push_back(std::move(call));
  }
  return calls;
}

bool is_ids(const Body& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

Prompt prompt_of(const Body& value, std::string_view field) {
  if (value.is_string()) return value.get<std::string>();
  if (is_ids(value)) return token_ids(value, field);
  throw bad_field(field, "must be a text, a list of token ids, or a list of either, and none of them empty");
}

}  // namespace

std::vector<text::Token> token_ids(const Body& value, std::string_view field) {
  if (!value.is_array()) throw bad_field(field, "must be a list of token ids");
  std::vector<text::Token> ids;
  ids.reserve(value.size());
  for (const Body& each : value) {
    // An integer over what its type holds reads as unsigned or as a float, and is refused as either.
    const bool whole =
        each.is_number_integer() && (!each.is_number_unsigned() || each.get<std::uint64_t>() <= 1u << 30);
    const std::int64_t id = whole ? each.get<std::int64_t>() : -1;
    if (id < 0 || id > std::numeric_limits<text::Token>::max()) {
      throw bad_field(field, fmt::format("has {} among its token ids", excerpt(each.dump(-1, ' ', true))));
    }
    ids.push_back(static_cast<text::Token>(id));
  }
  return ids;
}

std::vector<text::ChatMessage> chat_messages(const Body& value, std::string_view field) {
  if (!value.is_array() || value.empty()) throw bad_field(field, "must be a list with at least one message");
  std::vector<text::ChatMessage> messages;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Body& each = value[i];
    if (!each.is_object()) throw bad_field(fmt::format("{}[{}]", field, i), "must be an object");
    const auto role = each.find("role");
    if (role == each.end() || !role->is_string()) throw bad_field(path_of(field, i, "role"), "must be a text");
    const auto old = each.find("function_call");
    if (old != each.end() && !old->is_null() && !old->empty()) {
      throw bad_field(path_of(field, i, "function_call"), "is not there in this version; give tool_calls");
    }
    std::string who = role->get<std::string>();
    if (who == "developer") who = "system";
    text::ChatMessage message{std::move(who), content_of(each, path_of(field, i, "content"))};
    message.calls = calls_of(each, path_of(field, i, "tool_calls"));
    if (message.role == "tool") {
      message.call_id = text_of(each, "tool_call_id", path_of(field, i, "tool_call_id"));
      message.name = text_of(each, "name", path_of(field, i, "name"));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

void read_messages(const FieldReader& reader) {
  reader.wanted.messages = chat_messages(reader.value, reader.field.name);
}

void read_prompts(const FieldReader& reader) {
  const Body& value = reader.value;
  std::vector<Prompt>& prompts = reader.wanted.prompts;
  if (!value.is_array() || is_ids(value)) {
    prompts.push_back(prompt_of(value, reader.field.name));
    return;
  }
  if (value.empty() || std::ssize(value) > reader.limits.prompts) {
    throw bad_field(reader.field.name, fmt::format("has {} prompts; give 1 to {}, or raise {}", value.size(),
                                                   reader.limits.prompts, reader.field.flag));
  }
  for (const Body& each : value) prompts.push_back(prompt_of(each, reader.field.name));
}

void read_stops(const FieldReader& reader) {
  const auto add = [&](const Body& each) {
    if (!each.is_string()) throw bad_field(reader.field.name, "must be a text or a list of texts");
    std::string text = each.get<std::string>();
    if (text.empty()) throw bad_field(reader.field.name, "is an empty text: leave it out");
    reader.wanted.stop.push_back(std::move(text));
  };
  if (!reader.value.is_array()) return add(reader.value);
  if (std::ssize(reader.value) > reader.limits.stops) {
    throw bad_field(reader.field.name, fmt::format("has {} texts; give at most {}, or raise {}", reader.value.size(),
                                                   reader.limits.stops, reader.field.flag));
  }
  for (const Body& each : reader.value) add(each);
}

void read_logit_bias(const FieldReader& reader) {
  if (!reader.value.is_object()) throw bad_field(reader.field.name, "must be an object, as {\"198\": -5}");
  for (const auto& [key, value] : reader.value.items()) {
    text::Token token = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), token);
    if (error != std::errc() || end != key.data() + key.size() || token < 0) {
      throw bad_field(reader.field.name, fmt::format("has the key '{}', which is no token id", excerpt(key)));
    }
    const FieldReader number{reader.field, value, reader.limits, reader.wanted};
    reader.wanted.sampling.logit_bias.push_back({token, static_cast<float>(number.number())});
  }
}

void read_budget(const FieldReader& reader) {
  std::optional<std::string>& budget = reader.wanted.method.budget;
  if (reader.value.is_string()) {
    budget = reader.value.get<std::string>();
  } else if (reader.value.is_number_unsigned()) {
    budget = fmt::format("{}", reader.value.get<std::uint64_t>());
  } else {
    throw bad_field(reader.field.name, "must be a number of tokens, or a text as --attn-budget takes it");
  }
}

void read_method_options(const FieldReader& reader) {
  if (!reader.value.is_object()) throw bad_field(reader.field.name, "must be an object, as {\"reselect\": 13}");
  for (const auto& [key, value] : reader.value.items()) {
    if (value.is_null()) continue;
    const std::string path = excerpt(fmt::format("{}.{}", reader.field.name, key));
    if (key == "gates" || key.ends_with(".gates")) {
      throw bad_field(path, "names a file, which a request may not; give it to the server with --attn-opt");
    }
    if (value.is_structured()) throw bad_field(path, "must be a text, a number, true or false");
    reader.wanted.method.options[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
}

void read_lossless(const FieldReader& reader) {
  if (reader.value.is_boolean()) {
    if (reader.value.get<bool>()) reader.wanted.lossless = 0;
    return;
  }
  reader.wanted.lossless = static_cast<int>(reader.whole());
}

void read_reuse(const FieldReader& reader) {
  using engine::Reuse;
  const std::string wanted = reader.text();
  for (const Reuse reuse : {Reuse::exact, Reuse::dense, Reuse::any, Reuse::none}) {
    if (name(reuse) != wanted) continue;
    reader.wanted.reuse = reuse;
    return;
  }
  throw bad_field(reader.field.name, fmt::format("is '{}'; give exact, dense, any or none", excerpt(wanted)));
}

}  // namespace glimpse::server
