// A prompt's past as rows of 16 bits, where the cache has bytes: kernels of a prompt's rows read each row many times,
// and take no bytes. A layer of a prompt is widened before its attention, into the same memory for all layers and
// prompts.
#pragma once

#include <cstdint>

#include "glimpse/attention/cuda/own_pages.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kernels/cuda/widen.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream. One thread at a time.
class Widened {
 public:
  Widened(const kv::Cache& cache, kernels::cuda::Stream& stream)
      : cache_(cache), stream_(stream), pages_({KvType::f16, cache.shape().format.dim}, stream) {}

  /// Room for the longest of a pass's prompts. Throws UserError when the device has too little left.
  void make_space(const PassTables& tables);
  /// True where prompts of the pass are widened.
  bool any() const { return most_ > 0; }
  const kernels::KvFormat& format() const { return pages_.format(); }
  /// The widened view of a head.
  kernels::HeadView view(const kernels::HeadView& cached, int head) const;
  /// Queues the widening of a layer of a prompt: from `cached`, as view() leads to in `to`.
  void run(const kernels::PromptRows& prompt, const kernels::KvTable<kernels::Place::device>& cached,
           const kernels::KvTable<kernels::Place::device>& to) const;

 private:
  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  OwnPages pages_;
  std::int32_t most_ = 0;  ///< slots of a head, in whole pages
};

}  // namespace glimpse::attention::cuda
