// What the host says to the device before a pass: many small arrays, collected in one block and sent in one copy. The
// block keeps its place on the device while it is large enough, so that a graph may read from it again.
#pragma once

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Owned by one executor; one thread at a time. Arrays are added, sent, and read by what is queued then. clear() waits
/// for what was sent to be there; what is queued may still read it.
class Staging {
 public:
  explicit Staging(Stream& stream)
      : stream_(&stream), beside_(stream.device().number), sent_(stream), landed_(beside_), taken_(stream) {}

  void clear() {
    sent_.wait();
    landed_.wait();
    bytes_ = 0;
  }
  /// Where the values will lie.
  template <class T>
  std::size_t add(std::span<const T> values) {
    const std::size_t at = make_room(values.size_bytes());
    if (!values.empty()) std::memcpy(host_.raw() + at, values.data(), values.size_bytes());
    return at;
  }
  template <class T>
  std::size_t add(const std::vector<T>& values) {
    return add(std::span<const T>(values));
  }

  /// The same for values that the caller writes to values(), before it sends.
  template <class T>
  std::size_t add_room(std::size_t count) {
    return make_room(count * sizeof(T));
  }
  /// What was added, until the next thing is.
  template <class T>
  T* values(std::size_t place) {
    return reinterpret_cast<T*>(host_.raw() + place);
  }

  /// Queues the copy of all that was added. `behind` a pass that runs it crosses the bus beside that pass, and waits on
  /// the device.
  void send(bool behind = false) {
    if (bytes_ > device_.size()) {
      stream_->synchronize();  // what is queued may read the old block
      device_ = Memory(*stream_, with_reserve(bytes_));
      ++moves_;
    }
    if (!behind) {
      device_.copy_in_later(host_, bytes_);
      sent_.record();
      return;
    }
    if (waiting_.size() < bytes_) {
      stream_->synchronize();
      waiting_ = Memory(beside_, device_.size());
    }
    taken_.hold(beside_);
    waiting_.copy_in_later(host_, bytes_);
    landed_.record();
    landed_.hold(*stream_);
    device_.copy_from(waiting_, bytes_);
    taken_.record();
  }
  /// After send().
  template <class T>
  Pointer<const T, Place::device> at(std::size_t place) const {
    return reinterpret_cast<const T*>(device_.raw() + place);
  }
  /// How often the block has moved: pointers of another number lead nowhere.
  int moves() const { return moves_; }

 private:
  static std::size_t with_reserve(std::size_t bytes) { return bytes + bytes / 2 + 4096; }

  std::size_t make_room(std::size_t bytes) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t at = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    if (at + bytes > host_.size()) {
      Pinned larger(*stream_, with_reserve(at + bytes));
      if (bytes_ > 0) std::memcpy(larger.raw(), host_.raw(), bytes_);
      host_ = std::move(larger);
    }
    if (at > bytes_) std::memset(host_.raw() + bytes_, 0, at - bytes_);
    bytes_ = at + bytes;
    return at;
  }

  Stream* stream_;
  Stream beside_;
  Event sent_, landed_, taken_;  ///< it is where kernels read it; it waits; what waited is there
  std::size_t bytes_ = 0;
  Memory device_, waiting_;
  Pinned host_;  ///< what will be sent is put together here
  int moves_ = 0;
};

}  // namespace glimpse::kernels::cuda
