#include "glimpse/server/schema_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "glimpse/base/printable.h"
#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

void check_size(std::string_view field, std::string_view what, std::size_t bytes, const Limits& limits) {
  if (static_cast<std::int64_t>(bytes) <= limits.schema_bytes) return;
  throw bad_field(field, fmt::format("has {} of {} bytes; give at most {}, or raise --max-schema", what, bytes,
                                     limits.schema_bytes));
}

/// One field alone may say what an answer looks like.
void set_shape(const FieldReader& reader, AnswerShape::Kind kind, std::string text) {
  AnswerShape& shape = reader.wanted.shape;
  if (shape.kind != AnswerShape::Kind::any) {
    throw bad_field(reader.field.name, fmt::format("is given beside '{}'; give one of them", shape.field));
  }
  shape = {kind, std::move(text), std::string(reader.field.name)};
}

/// A value as the client wrote it, by the names of objects around it: the order of a schema's members is that of
/// answers.
std::string in_order(const FieldReader& reader, std::initializer_list<const char*> path, const Body& value) {
  std::string_view text = member_text(reader.body, reader.field.name);
  for (const char* name : path) text = member_text(text, name);
  return text.empty() ? value.dump() : compact_text(text);
}

void set_schema(const FieldReader& reader, std::initializer_list<const char*> path, const Body& schema) {
  if (!schema.is_object()) throw bad_field(reader.field.name, "has a schema that is no object");
  std::string text = in_order(reader, path, schema);
  check_size(reader.field.name, "a schema", text.size(), reader.limits);
  set_shape(reader, AnswerShape::Kind::schema, std::move(text));
}

constexpr std::size_t kLongestName = 64;

bool is_name(std::string_view name) {
  const auto fits = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.'; };
  return !name.empty() && name.size() <= kLongestName && std::all_of(name.begin(), name.end(), fits);
}

/// A function as llama.cpp's parsers take it, each member of the kind that they expect.
Body function_of(const Body& tool, const std::string& path, const Limits& limits) {
  const auto function = tool.is_object() ? tool.find("function") : tool.end();
  if (!tool.is_object() || tool.value("type", Body()) != "function" || function == tool.end() ||
      !function->is_object()) {
    throw bad_field(path, "must be {type: \"function\", function: {name, description, parameters}}");
  }
  const Body name = function->value("name", Body());
  if (!name.is_string() || !is_name(name.get<std::string>())) {
    throw bad_field(path + ".function.name",
                    fmt::format("must be a text of 1 to {} letters, digits, '_', '-' and '.'", kLongestName));
  }
  Body out{{"name", name}};
  if (const Body text = function->value("description", Body()); !text.is_null()) {
    if (!text.is_string()) throw bad_field(path + ".function.description", "must be a text");
    out["description"] = text;
  }
  if (const Body schema = function->value("parameters", Body()); !schema.is_null()) {
    if (!schema.is_object()) throw bad_field(path + ".function.parameters", "must be an object, a JSON schema");
    out["parameters"] = schema;
  }
  check_size(path, "a function", out.dump().size(), limits);
  return out;
}

}  // namespace

void read_tools(const FieldReader& reader) {
  if (!reader.value.is_array()) throw bad_field(reader.field.name, "must be a list of tools");
  if (std::ssize(reader.value) > reader.limits.tools) {
    throw bad_field(reader.field.name, fmt::format("has {} tools; give at most {}, or raise {}", reader.value.size(),
                                                   reader.limits.tools, reader.field.flag));
  }
  WantedTools& tools = reader.wanted.tools;
  const std::vector<std::string_view> texts = element_texts(member_text(reader.body, reader.field.name));
  for (std::size_t i = 0; i < reader.value.size(); ++i) {
    const std::string path = fmt::format("{}[{}]", reader.field.name, i);
    const Body function = function_of(reader.value[i], path, reader.limits);
    std::string name = function["name"];
    if (std::find(tools.names.begin(), tools.names.end(), name) != tools.names.end()) {
      throw bad_field(path, fmt::format("is a second function '{}'", name));
    }
    std::string text = fmt::format(R"({{"type":"function","function":{{"name":{})", function["name"].dump());
    if (function.contains("description")) text += R"(,"description":)" + function["description"].dump();
    if (function.contains("parameters")) {
      const bool written = texts.size() == reader.value.size();
      const std::string_view schema = written ? member_text(member_text(texts[i], "function"), "parameters") : "";
      text += R"(,"parameters":)" + (schema.empty() ? function["parameters"].dump() : compact_text(schema));
    }
    tools.names.push_back(std::move(name));
    tools.list.push_back(text + "}}");
  }
}

void read_tool_choice(const FieldReader& reader) {
  using Choice = text::ToolWish::Choice;
  WantedTools& tools = reader.wanted.tools;
  const Body& value = reader.value;
  if (value == "none" || value == "auto" || value == "required") {
    tools.choice = value == "none" ? Choice::none : value == "auto" ? Choice::automatic : Choice::required;
    return;
  }
  const Body function = value.is_object() ? value.value("function", Body()) : Body();
  const Body name = function.is_object() ? function.value("name", Body()) : Body();
  if (!name.is_string() || name == "" || value.value("type", Body()) != "function") {
    throw bad_field(reader.field.name, "must be none, auto, required, or {type: \"function\", function: {name}}");
  }
  tools.choice = Choice::required;
  tools.function = name.get<std::string>();
}

void settle_tools(Wanted& wanted) {
  using Choice = text::ToolWish::Choice;
  WantedTools& tools = wanted.tools;
  if (tools.list.empty()) {
    if (tools.choice == Choice::required) throw bad_field("tool_choice", "asks for a call, and 'tools' has no tool");
    tools.choice = Choice::none;
    return;
  }
  if (tools.choice != Choice::none && wanted.shape.kind != AnswerShape::Kind::any) {
    throw bad_field(wanted.shape.field,
                    "is given beside 'tools', whose calls it would forbid; leave out one of them, or "
                    "give 'tool_choice': \"none\"");
  }
  if (tools.function.empty()) return;
  const auto named = std::find(tools.names.begin(), tools.names.end(), tools.function);
  if (named == tools.names.end()) {
    throw bad_field("tool_choice",
                    fmt::format("names the function '{}', which 'tools' has not", excerpt(tools.function)));
  }
  tools.list = {tools.list[static_cast<std::size_t>(named - tools.names.begin())]};
}

void read_grammar_text(const FieldReader& reader) {
  std::string text = reader.text();
  if (text.empty()) return;
  check_size(reader.field.name, "a grammar", text.size(), reader.limits);
  set_shape(reader, AnswerShape::Kind::grammar, std::move(text));
}

void read_json_schema(const FieldReader& reader) {
  set_schema(reader, {}, reader.value);
}

void read_response_format(const FieldReader& reader) {
  const Body& value = reader.value;
  const auto member = [](const Body& object, const char* name) -> const Body* {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return !object.is_object() || found == object.end() || found->is_null() ? nullptr : &*found;
  };
  const Body* type = member(value, "type");
  if (type == nullptr || !type->is_string()) {
    throw bad_field(reader.field.name, "must be {type: ...}, with the type text, json_object or json_schema");
  }
  if (*type == "text") return;
  if (*type == "json_object") {
    if (const Body* schema = member(value, "schema")) return set_schema(reader, {"schema"}, *schema);
    return set_shape(reader, AnswerShape::Kind::object, {});
  }
  if (*type != "json_schema") {
    throw bad_field(reader.field.name, fmt::format("has the type '{}'; give text, json_object or json_schema",
                                                   excerpt(type->get<std::string>())));
  }
  const Body* named = member(value, "json_schema");
  const Body* schema = named != nullptr ? member(*named, "schema") : nullptr;
  if (schema == nullptr) throw bad_field(reader.field.name, "lacks 'json_schema' with a 'schema' in it");
  set_schema(reader, {"json_schema", "schema"}, *schema);
}

void read_template_values(const FieldReader& reader) {
  if (!reader.value.is_object())
    throw bad_field(reader.field.name, "must be an object, as {\"enable_thinking\": false}");
  for (const auto& [name, value] : reader.value.items()) {
    if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
      throw bad_field(reader.field.name, fmt::format("has '{}', which is not the request's to set there", name));
    }
    reader.wanted.template_values[name] = value.dump();
  }
}

}  // namespace glimpse::server
