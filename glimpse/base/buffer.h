// Owning, zero-filled, page-aligned host memory. The buffer owns its mapping; moves only. Any thread may read
// and write the bytes; construction and destruction follow the owner. A forked child does not have the memory.
#pragma once

#include <cstddef>
#include <span>

namespace glimpse {

class HostBuffer {
 public:
  HostBuffer() = default;
  /// Reserves `bytes` of address space. Physical memory comes with the first touch, in huge pages where the
  /// system grants them. Throws UserError when the system refuses the reservation.
  explicit HostBuffer(std::size_t bytes);
  ~HostBuffer();
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), size_ / sizeof(T)};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace glimpse
