// JSON read strictly: one object at a time with the path to it, every key accounted for, hostile depth and size ended
// early. Used by the .cc files that read plans and profiles. A document owns its values; readers borrow them. Any
// thread, each document on one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "glimpse/plan/plan.h"
#include "glimpse/plan/words.h"

namespace glimpse::plan {

struct JsonValue;
struct JsonMember;
using JsonArray = std::vector<JsonValue>;
using JsonMembers = std::vector<JsonMember>;  ///< in the order of the text; no key twice

struct JsonValue {
  std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, std::string, JsonArray, JsonMembers> value;
  std::string_view type_name() const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

/// Throws UserError, whose text starts with `what` ("plan JSON"): over 4 MiB, nested deeper than 16 levels, a key given
/// twice, not JSON, cut short.
JsonValue parse_json(std::string_view text, std::string_view what);

/// One object; remembers what was asked for, so that finish() can refuse the rest. Every refusal is a UserError
/// "WHAT: PATH: TEXT".
class JsonObject {
 public:
  /// `what` must outlive the reader.
  JsonObject(const JsonValue& json, std::string_view what, std::string path);

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const { return path_ + "." + std::string(key); }
  [[noreturn]] void refuse(const std::string& path, const std::string& text) const;

  const JsonValue* find(std::string_view key);
  const JsonValue& need(std::string_view key);
  const JsonArray* array(std::string_view key);
  const JsonArray& need_array(std::string_view key);
  JsonObject object(std::string_view key);
  JsonObject element(const JsonValue& json, const std::string& path) const { return {json, what_, path}; }

  /// Without `otherwise` the key must be there.
  int integer(std::string_view key, std::optional<int> otherwise);
  double number(std::string_view key, double otherwise);
  std::string text(std::string_view key);
  bool boolean(std::string_view key, bool otherwise);
  int integer_of(const JsonValue& json, const std::string& path) const;
  double number_of(const JsonValue& json, const std::string& path) const;  ///< finite: JSON has no other
  std::vector<int> integers(std::string_view key, std::size_t most);       ///< empty when the key is not there

  template <class Enum>
  Enum choice(std::string_view key, std::optional<Enum> otherwise) {
    if (otherwise && find(key) == nullptr) return *otherwise;
    return static_cast<Enum>(word_index(key, kWords<Enum>));
  }

  /// Refuses what nobody asked for.
  void finish() const;

 private:
  std::size_t word_index(std::string_view key, std::span<const std::string_view> words);

  const JsonMembers* members_ = nullptr;
  std::string_view what_;
  std::string path_;
  std::vector<std::string_view> known_;
};

/// What plans and profiles say of a model, all but its context.
ModelShape read_model_keys(JsonObject& object);

}  // namespace glimpse::plan
