#include "glimpse/kv/page_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kMapUnit = std::size_t{1} << 16;  ///< a multiple of any system's page

}  // namespace

PageFile::PageFile(const std::filesystem::path& folder) : folder_(folder) {
  std::string name = (folder / "glimpse-XXXXXX").string();
  file_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (file_ < 0) {
    throw UserError(
        fmt::format("cannot keep cold pages of the KV cache in '{}': {}; give a folder that can be written to",
                    folder.string(), std::strerror(errno)));
  }
  ::unlink(name.c_str());
}

PageFile::~PageFile() {
  for (const Piece& piece : pieces_) ::munmap(piece.bytes, piece.size);
  ::close(file_);
}

std::size_t PageFile::piece_bytes() const {
  return kPieceBytes;
}

/// Blocks are allocated before they are mapped: a write to a mapping finds a full disk by a signal only.
std::byte* PageFile::grow(std::size_t bytes, std::size_t held) {
  pieces_.reserve(pieces_.size() + 1);
  const std::size_t size = (bytes + kMapUnit - 1) / kMapUnit * kMapUnit;
  int error = 0;
  do {
    error = ::posix_fallocate(file_, static_cast<off_t>(size_), static_cast<off_t>(size));
  } while (error == EINTR);
  void* piece = MAP_FAILED;
  if (error == 0) {
    piece = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(size_));
    if (piece == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    throw UserError(fmt::format(
        "cannot keep {} more bytes of the KV cache in '{}', where {} are: {}; free some space, give another folder, or "
        "let more tokens stay resident",
        bytes, folder_.string(), held, std::strerror(error)));
  }
  size_ += size;
  pieces_.push_back({piece, size});
  return static_cast<std::byte*>(piece);
}

}  // namespace glimpse::kv
