#include "glimpse/exec/cuda/page_memory.h"

namespace glimpse::exec::cuda {
namespace {

class DevicePages final : public kv::PageMemory {
 public:
  DevicePages(kernels::cuda::Stream& stream, std::size_t plane_bytes)
      : k_(stream, plane_bytes), v_(stream, plane_bytes) {
    k_.fill(std::byte{0});
    v_.fill(std::byte{0});
  }

  kernels::Place place() const override { return kernels::Place::device; }
  std::byte* plane(kv::Plane which) const override { return memory(which).raw(); }
  void copy(kv::Plane which, std::size_t from, std::size_t to, std::size_t bytes) override {
    memory(which).copy(from, to, bytes);
  }
  void read(kv::Plane which, std::size_t from, std::span<std::byte> to) const override {
    memory(which).copy_out(from, to);
  }
  void write(kv::Plane which, std::size_t to, std::span<const std::byte> from) override {
    memory(which).copy_in(to, from);
  }

 private:
  const kernels::cuda::Memory& memory(kv::Plane which) const { return which == kv::Plane::k ? k_ : v_; }
  kernels::cuda::Memory& memory(kv::Plane which) { return which == kv::Plane::k ? k_ : v_; }

  kernels::cuda::Memory k_, v_;
};

}  // namespace

kv::MakePageMemory page_memory_on(kernels::cuda::Stream& stream) {
  return [&stream](std::size_t plane_bytes) { return std::make_unique<DevicePages>(stream, plane_bytes); };
}

}  // namespace glimpse::exec::cuda
