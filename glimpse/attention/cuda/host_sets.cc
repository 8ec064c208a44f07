#include "glimpse/attention/cuda/host_sets.h"

#include <numeric>

#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {

void HostSets::begin(const PassTables& tables, bool wanted) {
  bytes_ = wanted ? size(tables.sizes().sets) * size(tables.sizes().capacity) * sizeof(std::int32_t) : 0;
  if (bytes_ <= sets_.size()) return;
  stream_.synchronize();  // what is queued may write to the old memory
  ++moves_;
  sets_ = {};
  sets_ = kernels::cuda::Pinned(stream_, bytes_ + bytes_ / 4);
}

void HostSets::finish(const kernels::cuda::Memory& sets) {
  if (bytes_ > 0) sets.copy_out_later(0, sets_, bytes_);
}

std::optional<std::span<const std::int32_t>> HostSets::list(const PassTables& tables, int set,
                                                            const std::int32_t* counts) const {
  if (counts[set] == kernels::kEverything) return std::nullopt;
  const auto* const from =
      reinterpret_cast<const std::int32_t*>(sets_.raw()) + size(set) * size(tables.sizes().capacity);
  return std::span(from, size(counts[set]));
}

PublishedSet HostSets::at(const PassTables& tables, const PassEntry& entry, plan::SlotId slot,
                          const std::int32_t* counts) const {
  const Program& program = *entry.rows.program;
  const int first = first_set(entry, slot);
  PublishedSet set;
  set.everything = true;
  set.lists.resize(size(program.select(slot.layer, slot.head).lists));
  for (std::size_t i = 0; i < set.lists.size(); ++i) {
    if (const auto slots = list(tables, first + static_cast<int>(i), counts)) {
      set.lists[i].assign(slots->begin(), slots->end());
      set.everything = false;
      continue;
    }
    set.lists[i].resize(size(entry.tokens));
    std::iota(set.lists[i].begin(), set.lists[i].end(), 0);
  }
  return set;
}

}  // namespace glimpse::attention::cuda
