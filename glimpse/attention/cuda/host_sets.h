// The sets of a pass in the memory of the host, when the stream has passed: for those who watch, and for the tier.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/sets.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows the stream. One thread at a time.
class HostSets {
 public:
  explicit HostSets(kernels::cuda::Stream& stream) : stream_(stream) {}

  /// Before a pass, whose sets come back where they are `wanted`.
  void begin(const PassTables& tables, bool wanted);
  bool any() const { return bytes_ > 0; }
  /// Queues the copy.
  void finish(const kernels::cuda::Memory& sets);
  /// Slots of a set, which end with the next pass; nothing: it is everything. `counts`: of the pass's sets.
  std::optional<std::span<const std::int32_t>> list(const PassTables& tables, int set,
                                                    const std::int32_t* counts) const;
  /// What an entry published in a slot.
  PublishedSet at(const PassTables& tables, const PassEntry& entry, plan::SlotId slot,
                  const std::int32_t* counts) const;
  /// How often the memory has moved.
  int moves() const { return moves_; }

 private:
  kernels::cuda::Stream& stream_;
  kernels::cuda::Pinned sets_;
  std::size_t bytes_ = 0;
  int moves_ = 0;
};

}  // namespace glimpse::attention::cuda
