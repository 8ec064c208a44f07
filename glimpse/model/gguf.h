// Reads GGUF files, split ones too, and checks every count, size, offset and type before anyone else sees them. Owns
// the mappings that metadata strings and tensor data point into. After construction any thread may read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/mapped_file.h"
#include "glimpse/base/metadata.h"

namespace glimpse::model {

/// One tensor of the file. `type` is ggml's number (ggml_type), known to ggml and checked against the size.
struct TensorInfo {
  std::string name;
  int type = 0;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};  ///< ggml order: shape[0] is the row length
  const std::byte* data = nullptr;                ///< in the mapping
  std::size_t bytes = 0;
  std::int64_t rows() const { return shape[1] * shape[2] * shape[3]; }
};

/// The files of the model that `path` names: all parts where it is named like one of a split model, else itself. Opens
/// nothing.
std::vector<std::filesystem::path> model_parts(const std::filesystem::path& path);

class GgufFile {
 public:
  /// Opens PATH, and its siblings when PATH is part of a split model (-00001-of-0000N; any part may be named). Throws
  /// UserError naming the file and what is wrong with it.
  explicit GgufFile(const std::filesystem::path& path);
  /// The same checks on bytes in memory (tests, fuzzing). The bytes must outlive the object.
  GgufFile(std::span<const std::byte> bytes, const std::string& label);

  const Metadata& metadata() const { return metadata_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// Null when there is none.
  const TensorInfo* find(std::string_view name) const;
  const std::string& label() const { return label_; }

 private:
  std::string label_;
  std::vector<MappedFile> files_;
  Metadata metadata_;
  std::vector<TensorInfo> tensors_;  ///< by name
};

}  // namespace glimpse::model
