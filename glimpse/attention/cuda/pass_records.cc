#include "glimpse/attention/cuda/pass_records.h"

#include <algorithm>
#include <map>

#include "glimpse/attention/head_record.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {

void PassRecords::begin(const PassTables& tables, bool watched, int width) {
  rows_.clear();
  failures_.clear();
  for (const PassEntry& entry : tables.entries()) {
    if (watched && entry.rows.decodes()) rows_.push_back(entry.rows.first_row);
  }
  if (!any()) return;
  width_ = width;
  const std::size_t values = size(cache_.shape().layers) * rows_.size() * size(width);
  if (values <= queries_.size()) return;
  stream_.synchronize();  // what is queued may use the old memory
  ++moves_;
  queries_ = {};
  host_queries_ = {};
  queries_ = kernels::cuda::Array<float>(stream_, values);
  host_queries_ = kernels::cuda::Pinned(stream_, values * sizeof(float));
}

float* PassRecords::queries(int layer) const {
  return queries_.pointer().raw() + size(layer) * rows_.size() * size(width_);
}

void PassRecords::finish() {
  if (!any()) return;
  const std::size_t values = size(cache_.shape().layers) * rows_.size() * size(width_);
  queries_.memory().copy_out_later(0, host_queries_, values * sizeof(float));
}

void PassRecords::tell(const PassTables& tables, const HostSets& host, const std::int32_t* counts, const Audits& audits,
                       const See& see) {
  if (!any()) return;
  const std::span<const PassEntry> entries = tables.entries();
  failures_.assign(entries.size(), nullptr);
  const auto* query = reinterpret_cast<const float*>(host_queries_.raw());
  std::vector<std::map<std::pair<int, int>, PublishedSet>> made(entries.size());
  for (int layer = 0; layer < cache_.shape().layers; ++layer) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const PassEntry& entry = entries[i];
      if (!entry.rows.decodes()) continue;
      const auto set_at = [&](plan::SlotId slot) {
        const auto [at, fresh] = made[i].try_emplace({slot.layer, slot.head});
        if (fresh) at->second = host.at(tables, entry, slot, counts);
        return &at->second;
      };
      for (int head = 0; head < cache_.shape().kv_heads; ++head, query += width_ / cache_.shape().kv_heads) {
        if (failures_[i]) continue;
        const HeadSets sets = sets_of(entry.rows, {layer, head}, entry.dense, set_at);
        HeadRecord record = describe_head(cache_, entry.rows, {layer, head}, sets, space_);
        record.batch_index = static_cast<int>(i);
        record.query = query;
        if (entry.rows.audit) {
          const Coverage captured = audits.captured(entry.rows, {layer, head});
          if (captured.count > 0) record.coverage = captured.mean();
        }
        try {
          see(record);
        } catch (...) {
          failures_[i] = std::current_exception();
        }
      }
    }
  }
}

}  // namespace glimpse::attention::cuda
