// A file mapped read-only. Owns the mapping; moves only. Any thread may read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace glimpse {

class MappedFile {
 public:
  /// Throws UserError naming the file: missing, a folder, unreadable, empty.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace glimpse
