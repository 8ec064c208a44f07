// libllama's own forward pass, to compare with: logits in tests, time in benchmarks. Owns a model and a context of one
// sequence. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace glimpse::reference {

struct LlamaOptions {
  int context = 4096;
  int threads = 2;
  /// llama.cpp at its most exact: f32 cache, no flash attention (which would cast K and V to f16 and accumulate in
  /// f16). Else at its fastest: f16 cache, flash attention.
  bool exact = false;
  int batch = 512;
};

class LlamaReference {
 public:
  /// Throws std::runtime_error.
  LlamaReference(const std::filesystem::path& model, const LlamaOptions& options);
  ~LlamaReference();
  LlamaReference(const LlamaReference&) = delete;
  LlamaReference& operator=(const LlamaReference&) = delete;

  int vocabulary() const;
  /// Appends tokens in batches. With `all_logits` ([tokens, vocabulary], caller's size) every row is written, else
  /// only the last row's logits are computed. Returns the last row's logits.
  std::span<const float> append(std::span<const std::int32_t> tokens, std::vector<float>* all_logits = nullptr);
  /// Forgets everything from this position on.
  void truncate(int length);
  int length() const { return length_; }

  bool save(const std::filesystem::path& path) const;
  /// False when the file is missing or does not fit; `length` tokens are then not loaded.
  bool load(const std::filesystem::path& path, int length);

  std::vector<std::int32_t> tokenize(std::string_view text, bool add_special, bool parse_special) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  int length_ = 0;
};

}  // namespace glimpse::reference
