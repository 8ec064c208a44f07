// Bounds of pages in the memory of a device (kernels::SummaryTable), for plans that search them instead of keys. They
// hang on the page: one array for all pages of the cache, taken when the first such plan runs. The pass that writes a
// page's rows makes its bounds; of a sequence whose pages are not known to have theirs (a fork, a loaded session, one
// that came back from a file) the first pass makes them all.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cuda/program_facts.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/cuda/staging.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream. One thread at a time.
class Summaries {
 public:
  Summaries(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// Before anything of a pass has changed: takes the memory where the batch needs it and there is none. Throws
  /// UserError when the device has too little left.
  void begin(std::span<const SequenceRows> batch, std::span<const ProgramFacts* const> facts);
  /// Then, for each of the pass's sequences in order, which have their slots.
  void follow(const SequenceRows& rows, const ProgramFacts& facts);
  /// When all are followed: adds to `staging` the pages whose bounds the layers of the pass make, for each sequence and
  /// head that searches, and to `key` how many. Where there are any, empty ranges are among them, so that passes of one
  /// shape have as many.
  void stage(int layers, kernels::cuda::Staging& staging, std::vector<std::int64_t>& key);
  /// Queues the making of a layer's bounds.
  void make(int layer, const kernels::KvTable<kernels::Place::device>& cache, const kernels::cuda::Staging& staging,
            kernels::Operations<kernels::Place::device>& operations) const;
  /// Pages of a range, at most: a power of two, 0 where nobody searches or no page is full now.
  int most() const { return most_; }
  /// A pass does not come to its end: what it should have made is made again.
  void forget() { known_.clear(); }

  kernels::SummaryTable<kernels::Place::device> table() const;

 private:
  struct Known {
    std::uint64_t serial = 0;
    std::int64_t tokens = 0;  ///< full pages below have their bounds
  };
  struct Range {
    const ProgramFacts* program = nullptr;
    std::int32_t first = 0, last = 0;
  };

  /// Where a layer's lie.
  struct Staged {
    std::size_t at = 0;
    int count = 0;
  };

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  kernels::cuda::Memory bounds_;
  std::map<kv::SequenceId, Known> known_;  ///< an id that is used again is seen by its serial
  std::vector<Range> ranges_;              ///< [sequences of the pass]
  std::vector<kernels::PageRange> of_layer_;
  std::vector<Staged> staged_;  ///< [layers]
  int most_ = 0;
};

}  // namespace glimpse::attention::cuda
