// A model file's key-value metadata after our own checks: what `model` reads and `text` builds its vocabulary
// from, so that neither sees the other. A value type; strings point into the file's mapping, which its owner
// (model::GgufFile) keeps alive. Any thread may read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace glimpse {

/// The element types of the GGUF specification that arrays and scalars may have, with its numbers.
enum class MetaType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  string = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12
};

struct MetaArray {
  MetaType element = MetaType::u8;
  std::vector<std::string_view> strings;  ///< element == string
  std::vector<std::int64_t> integers;     ///< integer and boolean elements (u64 over 2^63 is refused at reading)
  std::vector<double> reals;              ///< f32 and f64 elements

  std::size_t size() const {
    if (element == MetaType::string) return strings.size();
    return element == MetaType::f32 || element == MetaType::f64 ? reals.size() : integers.size();
  }
};

struct MetaValue {
  MetaType type = MetaType::u8;
  std::variant<std::int64_t, double, std::string_view, MetaArray> value;
};

class Metadata {
 public:
  std::map<std::string, MetaValue, std::less<>> values;

  const MetaValue* find(std::string_view key) const {
    const auto found = values.find(key);
    return found == values.end() ? nullptr : &found->second;
  }
  /// Empty when the key is missing or of another kind.
  std::optional<std::int64_t> integer(std::string_view key) const { return get<std::int64_t>(key); }
  std::optional<std::string_view> string(std::string_view key) const { return get<std::string_view>(key); }
  /// Accepts an integer value too.
  std::optional<double> real(std::string_view key) const {
    if (const auto whole = integer(key)) return static_cast<double>(*whole);
    return get<double>(key);
  }
  const MetaArray* array(std::string_view key) const {
    const MetaValue* found = find(key);
    return found == nullptr ? nullptr : std::get_if<MetaArray>(&found->value);
  }

 private:
  template <class T>
  std::optional<T> get(std::string_view key) const {
    const MetaValue* found = find(key);
    if (found == nullptr) return std::nullopt;
    const T* value = std::get_if<T>(&found->value);
    return value == nullptr ? std::nullopt : std::optional<T>(*value);
  }
};

}  // namespace glimpse
