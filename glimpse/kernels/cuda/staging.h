// What the host says to the device before a pass: many small arrays, collected in one block and sent in one copy. The
// block keeps its place on the device while it is large enough, so that a graph may read from it again.
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Owned by one executor; one thread at a time. Arrays are added, sent, and read by what is queued then. The next
/// clear() comes after the stream has passed all of it.
class Staging {
 public:
  explicit Staging(Stream& stream) : stream_(&stream) {}

  void clear() { bytes_.clear(); }
  /// Where the values will lie.
  template <class T>
  std::size_t add(std::span<const T> values) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t at = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(at + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + at, values.data(), values.size_bytes());
    return at;
  }
  template <class T>
  std::size_t add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }

  /// Queues the copy of all that was added.
  void send() {
    if (bytes_.size() > device_.size()) {
      stream_->synchronize();  // what is queued may read the old block
      const std::size_t room = bytes_.size() + bytes_.size() / 2 + 4096;
      device_ = Memory(*stream_, room);
      host_ = Pinned(*stream_, room);
      ++moves_;
    }
    std::memcpy(host_.raw(), bytes_.data(), bytes_.size());
    device_.copy_in_later(host_, bytes_.size());
  }
  /// After send().
  template <class T>
  Pointer<const T, Place::device> at(std::size_t place) const {
    return reinterpret_cast<const T*>(device_.raw() + place);
  }
  /// How often the block has moved: pointers of another number lead nowhere.
  int moves() const { return moves_; }

 private:
  Stream* stream_;
  std::vector<std::byte> bytes_;
  Memory device_;
  Pinned host_;
  int moves_ = 0;
};

}  // namespace glimpse::kernels::cuda
