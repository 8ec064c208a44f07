// Numbers, arrays and texts as bytes and back, for files of our own: as they lie in memory, arrays with their count in
// front. The reader trusts nothing: what runs over the end, or over the most that the caller allows, is a UserError.
// Values; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace glimpse {

class ByteWriter {
 public:
  template <class T>
  void value(T value) {
    static_assert(std::is_arithmetic_v<T>);
    add(&value, sizeof(T));
  }
  template <class T>
  void values(std::span<const T> values) {
    static_assert(std::is_arithmetic_v<T> || std::is_same_v<T, std::byte>);
    value(static_cast<std::uint64_t>(values.size()));
    add(values.data(), values.size_bytes());
  }
  template <class T>
  void values(const std::vector<T>& all) {
    values(std::span<const T>(all));
  }
  void text(std::string_view text) { values(std::span<const char>(text)); }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void add(const void* from, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + count);
  }
  std::vector<std::byte> bytes_;
};

class ByteReader {
 public:
  /// Borrows the bytes; `what` stands in front of every problem.
  ByteReader(std::span<const std::byte> bytes, std::string what) : bytes_(bytes), what_(std::move(what)) {}

  template <class T>
  T value() {
    static_assert(std::is_arithmetic_v<T>);
    T value{};
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// A number that lies in [low, high].
  template <class T>
  T value(T low, T high, std::string_view name) {
    const T found = value<T>();
    if (!(found >= low && found <= high)) refuse_value(name, static_cast<double>(found));
    return found;
  }
  bool flag(std::string_view name) { return value<std::uint8_t>(0, 1, name) != 0; }
  template <class T>
  std::vector<T> values(std::uint64_t most, std::string_view name) {
    static_assert(std::is_arithmetic_v<T> || std::is_same_v<T, std::byte>);
    const auto count = static_cast<std::size_t>(value<std::uint64_t>(0, most, name));
    if (count > bytes_.size() / sizeof(T)) refuse_end();
    std::vector<T> all(count);
    if (count > 0) std::memcpy(all.data(), take(count * sizeof(T)).data(), count * sizeof(T));
    return all;
  }
  /// Just `count` of them.
  template <class T>
  std::vector<T> exactly(std::uint64_t count, std::string_view name) {
    std::vector<T> all = values<T>(count, name);
    require(all.size() == count, name);
    return all;
  }
  std::string text(std::uint64_t most, std::string_view name) {
    const std::vector<char> letters = values<char>(most, name);
    return {letters.begin(), letters.end()};
  }

  /// Throws UserError: "<what>: <problem> cannot be right".
  void require(bool ok, std::string_view problem) const {
    if (!ok) [[unlikely]]
      refuse(problem);
  }
  /// All bytes were read.
  void require_end() const { require(bytes_.empty(), "its length"); }

 private:
  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size()) refuse_end();
    const std::span<const std::byte> taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  [[noreturn]] void refuse(std::string_view problem) const;
  [[noreturn]] void refuse_value(std::string_view name, double value) const;
  [[noreturn]] void refuse_end() const;

  std::span<const std::byte> bytes_;
  std::string what_;
};

}  // namespace glimpse
