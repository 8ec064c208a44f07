// A model file of random weights, of a size that people run: for measuring without the model. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace glimpse::model {

/// The sizes of a model that people run.
struct ModelSize {
  const char* name;
  int layers, hidden, feed_forward, heads, kv_heads, dim, vocabulary;
  const char* architecture = "llama";
};
/// Throws UserError that lists what there is.
const ModelSize& model_size(const std::string& name);

/// What such a file's matrices are.
struct WeightType {
  std::string name;
  int number = 0;  ///< ggml's
  /// Bytes of so many weights, in rows of whole blocks.
  double bytes(double weights) const;
};
/// bf16, q8_0, q4_k and so on. Throws UserError that lists what there is.
WeightType weight_type(const std::string& name);

/// A GGUF file with matrices of small normal values, and a vocabulary without meaning. It has no name in its folder, so
/// nothing is left of it however the program ends; `path` leads to it in this process while this lives.
class RandomModel {
 public:
  struct Content {
    std::int64_t context = 0;
    WeightType weights;
  };
  /// Throws UserError when the folder has no room, and where rows are no whole blocks of the type.
  RandomModel(const ModelSize& size, const std::filesystem::path& folder, const Content& content);
  ~RandomModel();
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  int file_ = -1;
  std::filesystem::path path_;
};

}  // namespace glimpse::model
