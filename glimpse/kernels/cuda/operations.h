// The batched operations of kernels/ops.h on NVIDIA GPUs, and what host code needs around them: devices, streams,
// memory, graphs. Plain C++: no header of CUDA is needed to use it, nor a GPU or a driver to start a program that does.
// Where the build has no CUDA, devices() is empty and everything else throws a UserError that says so.
//
// Ownership: a Stream must outlive what was made with it. Threads: one at a time uses an object. Errors: out of memory,
// a device that is not there, a cache type or head dimension without kernels are UserErrors; a launch that fails is an
// InternalError.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glimpse/kernels/ops.h"

namespace glimpse::kernels::cuda {

struct Device {
  int number = 0;
  std::string name;
  int capability = 0;      ///< compute capability, times ten: 90 is Hopper
  int processors = 0;      ///< streaming multiprocessors
  std::size_t memory = 0;  ///< bytes
};

/// False where the build has no kernels.
bool is_built();

/// The devices of this machine that the kernels run on (compute capability 8.0 and later). Empty without a driver.
std::vector<Device> devices();

/// Bytes of a device's memory that nobody has taken.
std::size_t free_memory(int device);

/// A queue of work on one device.
class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Device& device() const;
  /// Calls of this thread go to its device from now on.
  void make_current();
  /// Waits until all that was queued has run. Throws what went wrong in it.
  void synchronize();
  void* raw() const;  ///< cudaStream_t

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A mark in a stream.
class Event {
 public:
  explicit Event(Stream& stream);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Behind all that is queued now; an earlier mark is forgotten.
  void record();
  /// Waits until the stream has passed the mark; at once where there is none. Throws what went wrong before it.
  void wait();
  /// What is queued on `other` from now on waits until the stream has passed the mark, where there is one.
  void hold(Stream& other) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Bytes of the host that the device reaches by itself: copies of them are queued and nobody waits.
class Pinned {
 public:
  Pinned() = default;
  Pinned(Stream& stream, std::size_t bytes);
  ~Pinned();
  Pinned(Pinned&& other) noexcept;
  Pinned& operator=(Pinned&& other) noexcept;

  std::size_t size() const { return size_; }
  std::byte* raw() const { return raw_; }

 private:
  std::byte* raw_ = nullptr;
  std::size_t size_ = 0;
  bool registered_ = false;  ///< memory of its own, not the driver's
};

/// Bytes on a stream's device. Copies are queued; copy_out waits for its own.
class Memory {
 public:
  Memory() = default;
  Memory(Stream& stream, std::size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;

  std::size_t size() const { return size_; }
  std::byte* raw() const { return raw_; }
  /// The bytes may be reused as soon as it returns.
  void copy_in(std::size_t at, std::span<const std::byte> bytes);
  void copy_out(std::size_t at, std::span<std::byte> bytes) const;
  /// The first `bytes` of `from`, and to `to` from `to_at` on; these must stay as they are until the stream has passed.
  void copy_in_later(const Pinned& from, std::size_t bytes);
  void copy_out_later(std::size_t at, Pinned& to, std::size_t bytes, std::size_t to_at = 0) const;
  /// The first `bytes` of `from`, queued on the stream of this memory.
  void copy_from(const Memory& from, std::size_t bytes);
  /// Inside; the two do not overlap.
  void copy(std::size_t from, std::size_t to, std::size_t bytes);
  void fill(std::byte value);

 private:
  Stream* stream_ = nullptr;
  std::byte* raw_ = nullptr;
  std::size_t size_ = 0;
};

/// `count` elements on a stream's device.
template <class T>
class Array {
 public:
  Array() = default;
  Array(Stream& stream, std::size_t count) : memory_(stream, count * sizeof(T)), count_(count) {}
  Array(Stream& stream, std::span<const T> values) : Array(stream, values.size()) { set(values); }
  Array(Stream& stream, const std::vector<T>& values) : Array(stream, std::span<const T>(values)) {}

  std::size_t size() const { return count_; }
  Pointer<T, Place::device> pointer() const { return reinterpret_cast<T*>(memory_.raw()); }
  Pointer<const T, Place::device> constant() const { return reinterpret_cast<const T*>(memory_.raw()); }
  void set(std::span<const T> values, std::size_t at = 0) { memory_.copy_in(at * sizeof(T), std::as_bytes(values)); }
  std::vector<T> values() const {
    std::vector<T> made(count_);
    memory_.copy_out(0, std::as_writable_bytes(std::span<T>(made)));
    return made;
  }
  Memory& memory() { return memory_; }

 private:
  Memory memory_;
  std::size_t count_ = 0;
};

/// Makes an array hold `wanted` values and some more, so that it need not grow with every token; true when it moved,
/// and its content is lost.
template <class T>
bool grow(Array<T>& array, Stream& stream, std::size_t wanted) {
  if (wanted <= array.size()) return false;
  stream.synchronize();  // what is queued may use the old one
  array = {};
  array = Array<T>(stream, wanted + wanted / 4 + 256);
  return true;
}

/// What was queued while it was made, as one thing to run. The memory that it uses must stay.
class Graph {
 public:
  /// Queues what `work` queues on the stream, without running it. Run the work once before: what must grow grows then.
  Graph(Stream& stream, const std::function<void()>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void run();
  /// Runs it, waits, and says how long the device took.
  double timed_seconds();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What K or V of a cache may take: kernels count in 32 bytes.
inline constexpr std::size_t kMostPlaneBytes = std::size_t{32} << 32;

/// Whether there are kernels for a cache of this format: bf16, f16 or q8_0, and d of 64, 96, 128 or 256. Throws a
/// UserError that names what there is.
void require_supported(const KvFormat& format);
/// The same for kernels of a prompt's rows: q8_0 is a failed check, for its rows are to be widened first (widen.h).
void require_halves(const KvFormat& format);

/// True where prefill() of a few rows divides a head's keys among all processors, and so reads them once, as fast as
/// memory gives them: on Hopper, d of 64 or 128 and 16 bits.
bool prefills_few_rows(const Stream& stream, const KvFormat& format);

/// The operations, queued on the stream (docs/kernels.md). Prefill takes no q8_0 (widen.h). Pointers must be aligned to
/// 16 bytes. Views, row tables, reads and the heads to score come from the host: a kernel may read them before the one
/// before it has ended. Choices over more units than fit into shared memory take memory of their own: the first such
/// operation may not be part of a graph.
std::unique_ptr<Operations<Place::device>> make_operations(Stream& stream);

}  // namespace glimpse::kernels::cuda
