// Writes GGUF files in memory, good ones and lying ones: every number of the format can be set apart from the truth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace glimpse::model {

struct BuilderPair {
  std::string key;
  std::uint32_t type = 0;
  std::string payload;  ///< the value's bytes
};

struct BuilderTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::uint32_t type = 0;  ///< F32 unless a row says otherwise
  std::string data;
  std::optional<std::uint64_t> offset;           ///< instead of the true one
  std::optional<std::uint32_t> dimension_count;  ///< instead of shape.size()
};

class GgufBuilder {
 public:
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> claimed_pairs, claimed_tensors;
  std::uint32_t alignment = 32;  ///< that the data is laid out with
  std::vector<BuilderPair> pairs;
  std::vector<BuilderTensor> tensors;

  /// Each replaces the pair of that key, or adds one.
  void set(const std::string& key, std::uint32_t type, std::string payload);
  void set_u32(const std::string& key, std::uint32_t value);
  void set_f32(const std::string& key, float value);
  void set_bool(const std::string& key, std::uint8_t value);
  void set_string(const std::string& key, const std::string& value);
  void set_strings(const std::string& key, const std::vector<std::string>& values);
  void set_i32s(const std::string& key, const std::vector<std::int32_t>& values);
  void set_u32s(const std::string& key, const std::vector<std::uint32_t>& values);
  void set_f32s(const std::string& key, const std::vector<float>& values);
  void remove(const std::string& key);

  /// A tensor of F32 small numbers.
  void add_tensor(const std::string& name, const std::vector<std::int64_t>& shape);
  void remove_tensor(const std::string& name);
  BuilderTensor& tensor(const std::string& name);

  std::vector<std::byte> bytes() const;
};

/// Bytes of a number, little-endian.
template <class T>
std::string raw(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
std::string raw_string(const std::string& text);

/// A whole model of one layer: hidden 16, 2 heads of 16 over 1 KV head, 16 feed-forward, 12 BPE tokens.
GgufBuilder tiny_model(const std::string& architecture = "llama");
/// The same with a SentencePiece vocabulary of 260 tokens.
GgufBuilder tiny_sentencepiece_model();

}  // namespace glimpse::model
