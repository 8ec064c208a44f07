#include "glimpse/kv/page_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;  ///< the file grows by about this
constexpr std::size_t kMapUnit = std::size_t{1} << 16;     ///< a multiple of any system's page

}  // namespace

PageFile::PageFile(const std::filesystem::path& folder, std::size_t page_bytes)
    : folder_(folder), slot_bytes_(2 * page_bytes), piece_slots_(std::max<std::size_t>(1, kPieceBytes / slot_bytes_)) {
  piece_bytes_ = (piece_slots_ * slot_bytes_ + kMapUnit - 1) / kMapUnit * kMapUnit;
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
  for (std::byte* piece : pieces_) ::munmap(piece, piece_bytes_);
  ::close(file_);
}

void PageFile::reserve(std::size_t slots) {
  while (free_.size() < slots) grow();
}

/// Blocks are allocated before they are mapped: a write to a mapping finds a full disk by a signal only.
void PageFile::grow() {
  const auto offset = static_cast<off_t>(pieces_.size() * piece_bytes_);
  int error = 0;
  do {
    error = ::posix_fallocate(file_, offset, static_cast<off_t>(piece_bytes_));
  } while (error == EINTR);
  void* piece = MAP_FAILED;
  if (error == 0) {
    piece = ::mmap(nullptr, piece_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, offset);
    if (piece == MAP_FAILED) error = errno;
  }
  if (error != 0) {
    throw UserError(fmt::format(
        "cannot keep {} more bytes of the KV cache in '{}', where {} are: {}; free some space, give another folder, or "
        "let more tokens stay resident",
        piece_bytes_, folder_.string(), bytes(), std::strerror(error)));
  }
  try {
    pieces_.reserve(pieces_.size() + 1);
    readers_.reserve(readers_.size() + piece_slots_);
    free_.reserve(readers_.size() + piece_slots_);
  } catch (...) {
    ::munmap(piece, piece_bytes_);
    throw;
  }
  pieces_.push_back(static_cast<std::byte*>(piece));
  const auto first = static_cast<Slot>(readers_.size());
  readers_.resize(readers_.size() + piece_slots_, 0);
  for (auto i = static_cast<Slot>(piece_slots_); i-- > 0;) free_.push_back(first + i);
}

PageFile::Slot PageFile::take() {
  check(!free_.empty(), "a slot is taken after room for it was made");
  const Slot slot = free_.back();
  free_.pop_back();
  readers_[static_cast<std::size_t>(slot)] = 1;
  return slot;
}

void PageFile::release(Slot slot) {
  std::uint32_t& readers = readers_[static_cast<std::size_t>(slot)];
  check(readers > 0, "a free slot is released");
  if (--readers == 0) free_.push_back(slot);
}

std::byte* PageFile::data(Slot slot) const {
  const auto at = static_cast<std::size_t>(slot);
  return pieces_[at / piece_slots_] + at % piece_slots_ * slot_bytes_;
}

}  // namespace glimpse::kv
