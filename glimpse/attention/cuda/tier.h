// The host tier on a device. A step reads pages where they wait (kernels/cuda/made_rows.h), because only the device
// knows its sets until it ends. Then those pages come back, and others go, as attention/tier.h says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/host_sets.h"
#include "glimpse/attention/cuda/page_tables.h"
#include "glimpse/attention/tier.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows the cache. One thread at a time.
class Tier {
 public:
  explicit Tier(kv::Cache& cache) : cache_(cache) {}

  /// For a pass whose sequences have their slots.
  void begin(std::span<const SequenceRows> batch, std::span<const ProgramFacts* const> facts);
  /// [batch] the sequence reads sets whose pages may wait.
  std::span<const char> waits() const { return waits_; }
  /// True where a sequence of the pass has a tier, whose sets are to come back.
  bool any() const { return any_; }
  /// When the stream has passed: moves pages of a decoding entry, tells `pages` of it, and counts. Returns what ends
  /// the pass for the entry where the tier has no room (UserError); all pages are where they were then.
  std::exception_ptr end(const PassTables& tables, const PassEntry& entry, const HostSets& sets,
                         const std::int32_t* counts, PageTables& pages, ReadCounters& counters);

 private:
  void move(kv::SequenceId sequence, PageTables& pages);

  kv::Cache& cache_;
  std::vector<char> waits_;
  bool any_ = false;
  TierStep step_;
  std::vector<std::int64_t> drafted_;            ///< a head's chosen_at during a draft
  std::vector<kv::HeadPage> missing_, evicted_;  ///< of all heads
};

}  // namespace glimpse::attention::cuda
