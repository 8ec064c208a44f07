#include "glimpse/plan/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/base/suggest.h"
#include "glimpse/plan/checks.h"

namespace glimpse::plan {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxText = 4u << 20;  // the largest plan that validates is far smaller when written in runs
constexpr std::size_t kMaxDepth = 16;

// Builds the values from the parser's events: duplicate keys and deep nesting end here, before memory is asked for.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view what) : what_(what) {}

  JsonValue take() { return std::move(root_); }

  bool null() override { return add({nullptr}); }
  bool boolean(bool value) override { return add({value}); }
  bool number_integer(std::int64_t value) override { return add({value}); }
  bool number_unsigned(std::uint64_t value) override { return add({value}); }
  bool number_float(double value, const std::string&) override { return add({value}); }
  bool string(std::string& value) override { return add({std::move(value)}); }
  bool binary(Json::binary_t&) override { return false; }
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return open({JsonMembers{}});
  }
  bool end_object() override {
    keys_.pop_back();
    return close();
  }
  bool start_array(std::size_t) override { return open({JsonArray{}}); }
  bool end_array() override { return close(); }
  bool key(std::string& value) override {
    if (!keys_.back().insert(value).second) {
      throw UserError(fmt::format("{}: key '{}' is given twice", what_, excerpt(value)));
    }
    std::get<JsonMembers>(open_.back()->value).push_back({value, {}});
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    // Behind the library's own name for the error: "[json.exception.parse_error.101] ".
    std::string_view what = error.what();
    const std::size_t name = what.find("] ");
    if (name != std::string_view::npos) what.remove_prefix(name + 2);
    throw UserError(fmt::format("{}: not valid JSON, or cut short: {}", what_, what.substr(0, 300)));
  }

 private:
  // Where the next value goes. Pointers stay good: a container grows only while none of its elements is open.
  JsonValue* place(JsonValue&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    JsonValue& parent = *open_.back();
    if (auto* array = std::get_if<JsonArray>(&parent.value)) return &array->emplace_back(std::move(value));
    JsonValue& member = std::get<JsonMembers>(parent.value).back().value;
    member = std::move(value);
    return &member;
  }
  bool add(JsonValue&& value) {
    place(std::move(value));
    return true;
  }
  bool open(JsonValue&& value) {
    if (open_.size() >= kMaxDepth) throw UserError(fmt::format("{}: nested deeper than {} levels", what_, kMaxDepth));
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

std::string_view JsonValue::type_name() const {
  constexpr std::array<std::string_view, 8> kNames{"null",   "boolean", "number", "number",
                                                   "number", "string",  "array",  "object"};
  return kNames[value.index()];
}

JsonValue parse_json(std::string_view text, std::string_view what) {
  if (text.size() > kMaxText) {
    throw UserError(fmt::format("{}: {} bytes are over the limit of {}", what, text.size(), kMaxText));
  }
  // The parser takes it for the end of the text.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    throw UserError(fmt::format("{}: byte {} is zero, which JSON has nowhere; write the file anew", what, at));
  }
  Builder builder(what);
  Json::sax_parse(text, &builder);
  return builder.take();
}

JsonObject::JsonObject(const JsonValue& json, std::string_view what, std::string path)
    : members_(std::get_if<JsonMembers>(&json.value)), what_(what), path_(std::move(path)) {
  if (members_ == nullptr) refuse(path_, fmt::format("expected an object, found {}", json.type_name()));
}

void JsonObject::refuse(const std::string& path, const std::string& text) const {
  throw UserError(fmt::format("{}: {}: {}", what_, path, text));
}

const JsonValue* JsonObject::find(std::string_view key) {
  if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
  const auto it = std::find_if(members_->begin(), members_->end(), [key](const JsonMember& m) { return m.key == key; });
  return it == members_->end() ? nullptr : &it->value;
}

const JsonValue& JsonObject::need(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) refuse(path_, fmt::format("'{}' is missing", key));
  return *value;
}

const JsonArray* JsonObject::array(std::string_view key) {
  const JsonValue* value = find(key);
  if (value == nullptr) return nullptr;
  const auto* array = std::get_if<JsonArray>(&value->value);
  if (array == nullptr) refuse(path_of(key), fmt::format("expected an array, found {}", value->type_name()));
  return array;
}

const JsonArray& JsonObject::need_array(std::string_view key) {
  need(key);
  return *array(key);
}

JsonObject JsonObject::object(std::string_view key) {
  return {need(key), what_, path_of(key)};
}

int JsonObject::integer(std::string_view key, std::optional<int> otherwise) {
  const JsonValue* value = otherwise ? find(key) : &need(key);
  return value == nullptr ? *otherwise : integer_of(*value, path_of(key));
}

double JsonObject::number(std::string_view key, double otherwise) {
  const JsonValue* value = find(key);
  return value == nullptr ? otherwise : number_of(*value, path_of(key));
}

std::string JsonObject::text(std::string_view key) {
  const JsonValue& value = need(key);
  const auto* text = std::get_if<std::string>(&value.value);
  if (text == nullptr) refuse(path_of(key), fmt::format("expected a string, found {}", value.type_name()));
  return *text;
}

bool JsonObject::boolean(std::string_view key, bool otherwise) {
  const JsonValue* value = find(key);
  if (value == nullptr) return otherwise;
  const auto* boolean = std::get_if<bool>(&value->value);
  if (boolean == nullptr) refuse(path_of(key), fmt::format("expected true or false, found {}", value->type_name()));
  return *boolean;
}

int JsonObject::integer_of(const JsonValue& json, const std::string& path) const {
  const auto limit = [&](auto value) {
    refuse(path, fmt::format("{} is out of range; the limit is {}", value, kMaxTokens));
  };
  if (const auto* value = std::get_if<std::int64_t>(&json.value)) {
    if (*value < -std::int64_t{kMaxTokens} || *value > std::int64_t{kMaxTokens}) limit(*value);
    return static_cast<int>(*value);
  }
  if (const auto* value = std::get_if<std::uint64_t>(&json.value)) {
    if (*value > std::uint64_t{kMaxTokens}) limit(*value);
    return static_cast<int>(*value);
  }
  refuse(path, fmt::format("expected a whole number, found {}", json.type_name()));
}

double JsonObject::number_of(const JsonValue& json, const std::string& path) const {
  if (const auto* value = std::get_if<double>(&json.value)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&json.value)) return static_cast<double>(*value);
  if (const auto* value = std::get_if<std::uint64_t>(&json.value)) return static_cast<double>(*value);
  refuse(path, fmt::format("expected a number, found {}", json.type_name()));
}

std::vector<int> JsonObject::integers(std::string_view key, std::size_t most) {
  std::vector<int> numbers;
  const JsonArray* values = array(key);
  if (values == nullptr) return numbers;
  if (values->size() > most) {
    refuse(path_of(key), fmt::format("{} entries are over the limit of {}", values->size(), most));
  }
  for (std::size_t i = 0; i < values->size(); ++i) {
    numbers.push_back(integer_of((*values)[i], fmt::format("{}[{}]", path_of(key), i)));
  }
  return numbers;
}

std::size_t JsonObject::word_index(std::string_view key, std::span<const std::string_view> words) {
  const std::string chosen = text(key);
  const auto it = std::find(words.begin(), words.end(), chosen);
  if (it == words.end()) refuse(path_of(key), unknown_name("word", chosen, words));
  return static_cast<std::size_t>(it - words.begin());
}

void JsonObject::finish() const {
  for (const auto& [key, value] : *members_) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
      refuse(path_, unknown_name("key", key, known_));
    }
  }
}

ModelShape read_model_keys(JsonObject& object) {
  ModelShape model;
  model.architecture = object.text("architecture");
  model.model_name = object.text("model_name");
  model.layers = object.integer("layers", std::nullopt);
  model.heads = object.integer("heads", std::nullopt);
  model.kv_heads = object.integer("kv_heads", std::nullopt);
  model.head_dim = object.integer("head_dim", std::nullopt);
  return model;
}

}  // namespace glimpse::plan
