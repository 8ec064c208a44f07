// Devices, streams, memory and graphs: what of CUDA's runtime needs no kernel.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/check.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {
namespace {

constexpr int kLeastCapability = 80;

/// The device that calls of this thread go to, for a while.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "asking for the current device");
    check_cuda(cudaSetDevice(device), "choosing a device");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

cudaStream_t stream_of(const Stream& stream) {
  return static_cast<cudaStream_t>(stream.raw());
}

}  // namespace

void check_cuda(cudaError_t error, const char* doing) {
  if (error == cudaSuccess) return;
  const std::string text = fmt::format("CUDA, {}: {}", doing, cudaGetErrorString(error));
  cudaGetLastError();  // said, so forgotten
  if (error == cudaErrorMemoryAllocation) {
    throw UserError(text + "; use a shorter context, fewer sequences, or a device with more memory");
  }
  throw InternalError(text);
}

bool is_built() {
  return true;
}

std::vector<Device> devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::vector<Device> found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp of{};
    if (cudaGetDeviceProperties(&of, i) != cudaSuccess) continue;
    const int capability = of.major * 10 + of.minor;
    if (capability < kLeastCapability) continue;
    found.push_back({i, of.name, capability, of.multiProcessorCount, of.totalGlobalMem});
  }
  return found;
}

std::size_t free_memory(int device) {
  const OnDevice on(device);
  std::size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  return free;
}

struct Stream::Impl {
  Device device;
  cudaStream_t raw = nullptr;
};

Stream::Stream(int device) : impl_(std::make_unique<Impl>()) {
  const std::vector<Device> all = devices();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Device& d) { return d.number == device; });
  if (found == all.end()) {
    throw UserError(
        fmt::format("there is no CUDA device {} of compute capability 8.0 or later, and this machine has {} of them; "
                    "choose another one or, for the CPU, leave out --device",
                    device, all.size()));
  }
  impl_->device = *found;
  const OnDevice on(device);
  check_cuda(cudaStreamCreateWithFlags(&impl_->raw, cudaStreamNonBlocking), "making a stream");
}
Stream::~Stream() {
  cudaStreamDestroy(impl_->raw);
}
const Device& Stream::device() const {
  return impl_->device;
}
void Stream::make_current() {
  check_cuda(cudaSetDevice(impl_->device.number), "choosing a device");
}
void Stream::synchronize() {
  check_cuda(cudaStreamSynchronize(impl_->raw), "waiting for the device");
}
void* Stream::raw() const {
  return impl_->raw;
}

struct Event::Impl {
  cudaStream_t stream = nullptr;
  cudaEvent_t raw = nullptr;
};

Event::Event(Stream& stream) : impl_(std::make_unique<Impl>()) {
  const OnDevice on(stream.device().number);
  impl_->stream = stream_of(stream);
  check_cuda(cudaEventCreateWithFlags(&impl_->raw, cudaEventDisableTiming), "making an event");
}
Event::~Event() {
  cudaEventDestroy(impl_->raw);
}
void Event::record() {
  check_cuda(cudaEventRecord(impl_->raw, impl_->stream), "marking a place in a stream");
}
void Event::hold(Stream& other) const {
  check_cuda(cudaStreamWaitEvent(stream_of(other), impl_->raw), "waiting for a stream");
}
void Event::wait() {
  check_cuda(cudaEventSynchronize(impl_->raw), "waiting for the device");
}

Pinned::Pinned(Stream& stream, std::size_t bytes) : size_(bytes) {
  const OnDevice on(stream.device().number);
  void* raw = nullptr;
  // Large pages are pinned in a third of the time that small ones take.
  constexpr std::size_t kLargePage = std::size_t{2} << 20;
  if (bytes >= 4 * kLargePage) {
    const std::size_t rounded = (bytes + kLargePage - 1) / kLargePage * kLargePage;
    raw = ::aligned_alloc(kLargePage, rounded);
    if (raw != nullptr) {
      ::madvise(raw, rounded, MADV_HUGEPAGE);
      if (cudaHostRegister(raw, rounded, cudaHostRegisterDefault) == cudaSuccess) {
        raw_ = static_cast<std::byte*>(raw);
        registered_ = true;
        return;
      }
      cudaGetLastError();  // the driver's own may do
      std::free(raw);
    }
  }
  check_cuda(cudaMallocHost(&raw, std::max<std::size_t>(bytes, 1)), "taking memory of the host");
  raw_ = static_cast<std::byte*>(raw);
}
Pinned::~Pinned() {
  if (raw_ == nullptr) return;
  if (!registered_) {
    cudaFreeHost(raw_);
    return;
  }
  cudaHostUnregister(raw_);
  std::free(raw_);
}
Pinned::Pinned(Pinned&& other) noexcept
    : raw_(std::exchange(other.raw_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      registered_(std::exchange(other.registered_, false)) {}
Pinned& Pinned::operator=(Pinned&& other) noexcept {
  std::swap(raw_, other.raw_);
  std::swap(size_, other.size_);
  std::swap(registered_, other.registered_);
  return *this;
}

Memory::Memory(Stream& stream, std::size_t bytes) : stream_(&stream), size_(bytes) {
  const OnDevice on(stream.device().number);
  void* raw = nullptr;
  check_cuda(cudaMalloc(&raw, std::max<std::size_t>(bytes, 1)), "taking memory");
  raw_ = static_cast<std::byte*>(raw);
}
Memory::~Memory() {
  if (raw_ != nullptr) cudaFree(raw_);
}
Memory::Memory(Memory&& other) noexcept
    : stream_(other.stream_), raw_(std::exchange(other.raw_, nullptr)), size_(std::exchange(other.size_, 0)) {}
Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(stream_, other.stream_);
  std::swap(raw_, other.raw_);
  std::swap(size_, other.size_);
  return *this;
}
void Memory::copy_in(std::size_t at, std::span<const std::byte> bytes) {
  check(at + bytes.size() <= size_, "a copy behind the end of device memory");
  if (bytes.empty()) return;
  // From memory that the driver did not map, the call returns when the bytes are read.
  check_cuda(cudaMemcpyAsync(raw_ + at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream_of(*stream_)),
             "copying to the device");
}
void Memory::copy_out(std::size_t at, std::span<std::byte> bytes) const {
  check(at + bytes.size() <= size_, "a copy behind the end of device memory");
  if (bytes.empty()) return;
  check_cuda(cudaMemcpyAsync(bytes.data(), raw_ + at, bytes.size(), cudaMemcpyDeviceToHost, stream_of(*stream_)),
             "copying from the device");
  stream_->synchronize();
}
void Memory::copy_in_later(const Pinned& from, std::size_t bytes) {
  check(bytes <= size_ && bytes <= from.size(), "a copy behind the end of device memory");
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(raw_, from.raw(), bytes, cudaMemcpyHostToDevice, stream_of(*stream_)),
             "copying to the device");
}
void Memory::copy_out_later(std::size_t at, Pinned& to, std::size_t bytes, std::size_t to_at) const {
  check(at + bytes <= size_ && to_at + bytes <= to.size(), "a copy behind the end of device memory");
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(to.raw() + to_at, raw_ + at, bytes, cudaMemcpyDeviceToHost, stream_of(*stream_)),
             "copying from the device");
}
void Memory::copy_from(const Memory& from, std::size_t bytes) {
  check(bytes <= size_ && bytes <= from.size_, "a copy behind the end of device memory");
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(raw_, from.raw_, bytes, cudaMemcpyDeviceToDevice, stream_of(*stream_)),
             "copying on the device");
}
void Memory::copy(std::size_t from, std::size_t to, std::size_t bytes) {
  check(from + bytes <= size_ && to + bytes <= size_, "a copy behind the end of device memory");
  if (bytes == 0) return;
  check_cuda(cudaMemcpyAsync(raw_ + to, raw_ + from, bytes, cudaMemcpyDeviceToDevice, stream_of(*stream_)),
             "copying on the device");
}
void Memory::fill(std::byte value) {
  check_cuda(cudaMemsetAsync(raw_, static_cast<int>(value), size_, stream_of(*stream_)), "filling memory");
}

struct Graph::Impl {
  Stream* stream = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

Graph::Graph(Stream& stream, const std::function<void()>& work) : impl_(std::make_unique<Impl>()) {
  impl_->stream = &stream;
  check_cuda(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeRelaxed), "beginning a graph");
  cudaGraph_t graph = nullptr;
  try {
    work();
  } catch (...) {
    if (cudaStreamEndCapture(stream_of(stream), &graph) == cudaSuccess && graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  check_cuda(cudaStreamEndCapture(stream_of(stream), &graph), "ending a graph");
  const cudaError_t made = cudaGraphInstantiate(&impl_->exec, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(made, "making a graph");
  check_cuda(cudaEventCreate(&impl_->begin), "making an event");
  check_cuda(cudaEventCreate(&impl_->end), "making an event");
}
Graph::~Graph() {
  cudaGraphExecDestroy(impl_->exec);
  cudaEventDestroy(impl_->begin);
  cudaEventDestroy(impl_->end);
}
void Graph::run() {
  check_cuda(cudaGraphLaunch(impl_->exec, stream_of(*impl_->stream)), "running a graph");
}
double Graph::timed_seconds() {
  check_cuda(cudaEventRecord(impl_->begin, stream_of(*impl_->stream)), "timing");
  run();
  check_cuda(cudaEventRecord(impl_->end, stream_of(*impl_->stream)), "timing");
  check_cuda(cudaEventSynchronize(impl_->end), "timing");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, impl_->begin, impl_->end), "timing");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace glimpse::kernels::cuda
