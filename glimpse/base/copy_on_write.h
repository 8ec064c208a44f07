// A value whose copies share memory until one of them changes it. Different copies may be used by different threads at
// once, also where they share; one copy by one thread at a time, or by several that only read.
#pragma once

#include <atomic>
#include <utility>

namespace glimpse {

template <class T>
class CopyOnWrite {
 public:
  CopyOnWrite() : shared_(new Shared) {}
  explicit CopyOnWrite(T value) : shared_(new Shared{std::move(value)}) {}
  CopyOnWrite(const CopyOnWrite& other) : shared_(other.shared_) { shared_->users.fetch_add(1); }
  CopyOnWrite& operator=(CopyOnWrite other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~CopyOnWrite() {
    if (shared_->users.fetch_sub(1) == 1) delete shared_;
  }

  const T& operator*() const { return shared_->value; }
  const T* operator->() const { return &shared_->value; }
  /// The value to change: from now on this copy's own.
  T& own() {
    // Who saw another user's count go had its reads before, so that what it read may be written now.
    if (shared_->users.load() > 1) *this = CopyOnWrite(shared_->value);
    return shared_->value;
  }

 private:
  struct Shared {
    T value{};
    std::atomic<int> users{1};
  };
  Shared* shared_;
};

}  // namespace glimpse
