#include "glimpse/exec/cuda/page_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/base/machine_memory.h"
#include "glimpse/base/printable.h"
#include "glimpse/kernels/cuda/layers.h"

namespace glimpse::exec::cuda {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 20;
constexpr std::size_t kSpare = std::size_t{1} << 30;  ///< of the host's memory: what is pinned cannot be swapped out

/// Pages of the tier, in memory of the host that kernels read and write.
class PinnedPages final : public kv::WaitingMemory {
 public:
  explicit PinnedPages(kernels::cuda::Stream& stream) : stream_(stream) {}

  std::size_t piece_bytes() const override { return kPieceBytes; }
  std::byte* grow(std::size_t bytes, std::size_t held) override {
    const std::optional<std::int64_t> available = available_memory();
    if (available && static_cast<std::size_t>(*available) < bytes + kSpare) {
      throw UserError(
          fmt::format("cannot keep {} more bytes of the KV cache in the host's memory, where {} are and {} are free; "
                      "let more tokens stay on the GPU (--attn-opt resident), or use a shorter context",
                      bytes, held, *available));
    }
    pieces_.reserve(pieces_.size() + 1);
    pieces_.emplace_back(stream_, bytes);
    return pieces_.back().raw();
  }

 private:
  kernels::cuda::Stream& stream_;
  std::vector<kernels::cuda::Pinned> pieces_;
};

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
    send(rows, moves_);
    kernels::cuda::move_rows(
        stream_, {memory(which).raw(), moves_.constant(), static_cast<int>(rows.size()), static_cast<int>(bytes)});
  }
  void read(kv::Plane which, std::size_t from, std::span<std::byte> to) const override {
    memory(which).copy_out(from, to);
  }
  void write(kv::Plane which, std::size_t to, std::span<const std::byte> from) override {
    memory(which).copy_in(to, from);
  }

  std::unique_ptr<kv::WaitingMemory> make_waiting(const std::filesystem::path&) override {
    return std::make_unique<PinnedPages>(stream_);
  }
  void save(std::span<const kernels::PageCopy> pages, std::size_t bytes) const override {
    copy_pages(pages, bytes, false);
    if (!pages.empty()) stream_.synchronize();
  }
  void load(std::span<const kernels::PageCopy> pages, std::size_t bytes) override { copy_pages(pages, bytes, true); }

 private:
  template <class T>
  void send(std::span<const T> values, kernels::cuda::Array<T>& to) const {
    if (values.size() > to.size()) {
      stream_.synchronize();  // what is queued may read the old ones
      to = {};
      to = kernels::cuda::Array<T>(stream_, values.size() + values.size() / 2);
    }
    to.set(values);
  }
  void copy_pages(std::span<const kernels::PageCopy> pages, std::size_t bytes, bool back) const {
    send(pages, copies_);
    kernels::cuda::copy_pages(stream_, {.k = k_.raw(),
                                        .v = v_.raw(),
                                        .pages = copies_.constant(),
                                        .count = static_cast<int>(pages.size()),
                                        .bytes = static_cast<int>(bytes),
                                        .back = back});
  }
  const kernels::cuda::Memory& memory(kv::Plane which) const { return which == kv::Plane::k ? k_ : v_; }
  kernels::cuda::Memory& memory(kv::Plane which) { return which == kv::Plane::k ? k_ : v_; }

  kernels::cuda::Stream& stream_;
  kernels::cuda::Memory k_, v_;
  kernels::cuda::Array<kernels::RowMove> moves_;
  mutable kernels::cuda::Array<kernels::PageCopy> copies_;  ///< what the last call said
};

}  // namespace

kv::MakePageMemory page_memory_on(kernels::cuda::Stream& stream) {
  return [&stream](std::size_t plane_bytes) {
    if (plane_bytes > kernels::cuda::kMostPlaneBytes) {
      throw UserError(
          fmt::format("a KV cache with keys of {} is more than the {} that kernels reach; use a "
                      "smaller context (-c) or --kv-type q8_0",
                      bytes_text(static_cast<double>(plane_bytes)),
                      bytes_text(static_cast<double>(kernels::cuda::kMostPlaneBytes))));
    }
    return std::make_unique<DevicePages>(stream, plane_bytes);
  };
}

}  // namespace glimpse::exec::cuda
