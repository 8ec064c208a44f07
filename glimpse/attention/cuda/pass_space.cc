#include "glimpse/attention/cuda/pass_space.h"

#include <algorithm>
#include <utility>

#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {

void PassSpace::make(const PassTables& tables, int heads, int kv_heads, bool gates) {
  stride_ = tables.sizes().stride;
  capacity_ = tables.sizes().capacity;
  sets_ = tables.sizes().sets;
  bool moved = false;
  if (stride_ > 0) {
    int most = 0;
    for (const RowGroup& group : tables.groups()) most = std::max(most, group.rows);
    moved |= grow(scores_, stream_, size(most) * size(heads) * stride_);
    moved |= grow(lse_, stream_, size(most) * size(heads));
    if (gates) moved |= grow(gate_queries_, stream_, size(most) * size(kv_heads) * kernels::cuda::kMostGateDim);
  }
  moved |= grow(set_slots_, stream_, size(sets_) * size(capacity_));
  moved |= grow(counts_, stream_, 2 * size(sets_));
  if (2 * size(sets_) * sizeof(std::int32_t) > host_counts_.size()) {
    stream_.synchronize();
    older_counts_ =
        std::exchange(host_counts_, kernels::cuda::Pinned(stream_, (3 * size(sets_) + 256) * sizeof(std::int32_t)));
    moved = true;
  }
  if (moved) ++moves_;
}

void PassSpace::finish() {
  copied_ = reinterpret_cast<const std::int32_t*>(host_counts_.raw());
  if (sets_ > 0) counts_.memory().copy_out_later(0, host_counts_, 2 * size(sets_) * sizeof(std::int32_t));
}

}  // namespace glimpse::attention::cuda
