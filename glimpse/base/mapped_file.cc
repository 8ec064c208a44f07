#include "glimpse/base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw UserError(fmt::format("cannot open '{}': {}", path.string(), std::strerror(errno)));
  struct stat status {};
  const bool known = fstat(file, &status) == 0;
  if (!known || !S_ISREG(status.st_mode) || status.st_size == 0) {
    close(file);
    throw UserError(
        fmt::format("'{}' is {}", path.string(), known && S_ISREG(status.st_mode) ? "empty" : "not a regular file"));
  }
  size_ = static_cast<std::size_t>(status.st_size);
  void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const int error = errno;
  close(file);
  if (mapped == MAP_FAILED) {
    throw UserError(fmt::format("cannot map '{}': {}", path.string(), std::strerror(error)));
  }
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace glimpse
