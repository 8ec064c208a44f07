// How indices of the host grow while a device holds the keys: pages of keys come back, and the host's threads take them
// in. Indices stay the host's, so that forks and sessions are the same on both devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kv/cache.h"
#include "glimpse/kv/index/key_index.h"

namespace glimpse::attention::cuda {

/// The index of a head, while it grows.
struct IndexItem {
  int layer = 0, head = 0;
  kv::KeyIndex* index = nullptr;
  std::byte* keys = nullptr;                 ///< pages of the span that was read, until the next reading
  std::vector<kernels::cuda::Write> writes;  ///< to send afterwards
};

/// Tokens [first, last) whose keys are read.
struct KeySpan {
  std::int64_t first = 0, last = 0;
  bool empty() const { return last <= first; }
  /// What covers both.
  KeySpan with(const KeySpan& other) const;
};

/// Owned by a runner; borrows cache and stream. One thread at a time; starts `threads` of its own.
class IndexBuilder {
 public:
  using Growth = std::function<void(IndexItem&, const kv::KeySource&)>;

  IndexBuilder(const kv::Cache& cache, kernels::cuda::Stream& stream, int threads);

  /// Before a pass takes in its sequences; `behind`: another one runs, and what it does not write is read beside it.
  void begin(bool behind) { behind_ = behind; }
  /// Before a pass's kernels are queued, and behind all else that they wait for.
  void queue();

  /// `work` for each item, with the keys of `span`, of a prompt of so many tokens. Returns the seconds of all threads.
  double grow(const SequenceRows& rows, std::span<IndexItem> items, KeySpan span, std::int64_t prompt,
              const Growth& work);
  /// Pages that hold the span, of each item's head, to its `keys`; the first one is page span.first / kPageTokens.
  /// Waits for a pass that runs only where that writes some of it, or pages were copied since.
  void read(const SequenceRows& rows, std::span<IndexItem> items, KeySpan span);
  /// work(i) for all i below count on the threads; throws what one of them threw. Returns the seconds of all threads.
  double share(std::size_t count, const std::function<void(std::size_t)>& work) const;

 private:
  static double share(std::size_t count, int threads, const std::function<void(std::size_t)>& work);
  void hold(const SequenceRows& rows, const KeySpan& span);

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  kernels::cuda::Stream reads_;  ///< keys come back on it, so that a pass need not have ended
  kernels::cuda::Event queued_;  ///< behind the work that the last pass waits for
  kernels::cuda::Event all_;     ///< behind all work
  std::uint64_t changes_ = 0;    ///< kv::Cache::changes() when that was queued
  bool behind_ = false;
  int threads_ = 1;
  kernels::cuda::Array<std::int32_t> which_;
  kernels::cuda::Array<float> pages_;
  kernels::cuda::Pinned host_;
};

/// Views of some heads whose first `tokens` kernels follow: their pages in the device's memory. All of those are
/// resident. Lives until the stream has passed what was given it.
class DeviceHeads {
 public:
  DeviceHeads(const kv::Cache& cache, kernels::cuda::Stream& stream, kv::SequenceId sequence,
              std::span<const plan::SlotId> heads, std::int64_t tokens);
  kernels::Pointer<const kernels::HeadView, kernels::Place::device> views() const { return views_.constant(); }
  int count() const { return static_cast<int>(views_.size()); }

 private:
  kernels::cuda::Array<kernels::PageId> tables_;
  kernels::cuda::Array<kernels::HeadView> views_;
};

/// The selector of what a head makes.
const plan::Selector& selector_of(const SequenceRows& rows, int layer, int head);

/// The index of a head whose sets are made by such searches; null where they are not.
using Searches = bool (*)(const SelectOp&);
kv::KeyIndex* index_of(const SequenceRows& rows, int layer, int head, Searches searches);
/// Those of all heads.
std::vector<IndexItem> items_of(const SequenceRows& rows, Searches searches);

/// Throws UserError where the device has no room for so many bytes of a sequence's, `what` they are called. `make_room`
/// gives back what is not needed in this pass.
void require_memory(kernels::cuda::Stream& stream, std::size_t bytes, const SequenceRows& rows, const char* what,
                    const std::function<void()>& make_room);
/// Memory for a sequence's copies of an index; throws the same.
kernels::cuda::Memory copies_memory(kernels::cuda::Stream& stream, std::size_t bytes, const SequenceRows& rows,
                                    const char* what, const std::function<void()>& make_room);

}  // namespace glimpse::attention::cuda
