// The host tier of ArkVale and ShadowKV: of each head a bounded number of pages is resident, the others wait and come
// back when a set needs them. What is attended never depends on it. Here is which pages go and which come back in a
// step; where and when they move is the device's business.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/records.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention {

/// What a step's set asks of the pages of its head: the pages that were not in a set for longest go, no more than the
/// retention's budget asks for. Kept from head to head for its vectors; one thread at a time.
class TierStep {
 public:
  /// For a head of a decoding row whose set is made. `chosen_at` [page]: the decoding step in which each was last in a
  /// set; it takes this one in. All of them are used until end().
  void begin(const kv::Cache& cache, const SequenceRows& rows, plan::SlotId head, std::vector<std::int64_t>& chosen_at);
  /// The set's lists, one after the other.
  void take(std::span<const std::int32_t> positions);
  void take_everything();
  /// Decides. Pages whose keys no index covers stay.
  void end();

  const std::vector<kv::HeadPage>& missing() const { return missing_; }  ///< pages of the set that wait
  const std::vector<kv::HeadPage>& evicted() const { return evicted_; }  ///< those that make room
  /// Adds what came back, and what was there, to the step's counters.
  void count(ReadCounters& counters) const;

 private:
  void take_page(std::int32_t page);
  bool waits(std::int32_t page) const;
  void choose_evicted(std::int64_t surplus);

  const kv::Cache* cache_ = nullptr;
  const SequenceRows* rows_ = nullptr;
  plan::SlotId head_;
  std::vector<std::int64_t>* chosen_at_ = nullptr;
  std::span<const std::uint64_t> waiting_;  ///< a bit a page
  std::int64_t now_ = 0, tokens_ = 0;
  std::int64_t needed_ = 0, resident_ = 0;  ///< pages of the set; pages that are resident when both have moved
  std::vector<kv::HeadPage> missing_, evicted_;
};

}  // namespace glimpse::attention
