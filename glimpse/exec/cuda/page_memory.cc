#include "glimpse/exec/cuda/page_memory.h"

#include "glimpse/kernels/cuda/layers.h"

namespace glimpse::exec::cuda {
namespace {

class DevicePages final : public kv::PageMemory {
 public:
  DevicePages(kernels::cuda::Stream& stream, std::size_t plane_bytes)
      : stream_(stream), k_(stream, plane_bytes), v_(stream, plane_bytes) {
    k_.fill(std::byte{0});
    v_.fill(std::byte{0});
  }

  kernels::Place place() const override { return kernels::Place::device; }
  std::byte* plane(kv::Plane which) const override { return memory(which).raw(); }
  void copy(kv::Plane which, std::size_t from, std::size_t to, std::size_t bytes) override {
    memory(which).copy(from, to, bytes);
  }
  void move(kv::Plane which, std::span<const kernels::RowMove> rows, std::size_t bytes) override {
    if (rows.size() > moves_.size()) {
      stream_.synchronize();  // what is queued may read the old ones
      moves_ = {};
      moves_ = kernels::cuda::Array<kernels::RowMove>(stream_, rows.size() + rows.size() / 2);
    }
    moves_.set(rows);
    kernels::cuda::move_rows(
        stream_, {memory(which).raw(), moves_.constant(), static_cast<int>(rows.size()), static_cast<int>(bytes)});
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

  kernels::cuda::Stream& stream_;
  kernels::cuda::Memory k_, v_;
  kernels::cuda::Array<kernels::RowMove> moves_;
};

}  // namespace

kv::MakePageMemory page_memory_on(kernels::cuda::Stream& stream) {
  return [&stream](std::size_t plane_bytes) { return std::make_unique<DevicePages>(stream, plane_bytes); };
}

}  // namespace glimpse::exec::cuda
