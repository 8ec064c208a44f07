// Writes a float32 matrix as NumPy's .npy, row by row. The file appears under its name only when it is complete:
// until then it is a temporary one beside it, removed when the writer is destroyed early. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

namespace glimpse::evaluate {

class NpyWriter {
 public:
  /// Opens the temporary file. Throws UserError naming `path`: a folder that does not exist or cannot be written,
  /// a target that is no regular file.
  NpyWriter(std::filesystem::path path, std::int64_t rows, std::int64_t columns);
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  /// The next row, [columns]. Throws UserError when the disk is full.
  void add(std::span<const float> row);
  /// After the last row: puts the file in its place. Throws UserError when that fails.
  void finish();

 private:
  void write(const void* data, std::size_t bytes);
  [[noreturn]] void refuse(const char* what, int error) const;

  std::filesystem::path path_, temporary_;
  std::int64_t rows_, columns_, written_ = 0;
  int file_ = -1;
};

}  // namespace glimpse::evaluate
