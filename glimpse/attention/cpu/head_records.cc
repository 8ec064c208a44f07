#include "glimpse/attention/cpu/head_records.h"

#include <algorithm>

#include "glimpse/attention/head_record.h"

namespace glimpse::attention {
namespace {

/// Floats of the query heads of a row.
std::size_t width_of(const Pass& pass) {
  return static_cast<std::size_t>(pass.shape.heads) * static_cast<std::size_t>(pass.shape.head_dim);
}

/// [H, d] of an entry's row.
float* queries_of(Pass& pass, int layer, std::size_t index) {
  return pass.queries.data() + (static_cast<std::size_t>(layer) * pass.batch_size + index) * width_of(pass);
}

HeadRecord record_of(Pass& pass, const BatchEntry& entry, plan::SlotId at, std::span<PublishedSet, 2> named,
                     std::vector<std::int32_t>& space) {
  std::size_t count = 0;
  const HeadSets sets = sets_of(entry.rows, at, entry.dense, [&](plan::SlotId slot) {
    named[count] = pass.sets.published(entry.set_of(slot), entry.lists_of(slot), entry.tokens);
    return &named[count++];
  });
  HeadRecord record = describe_head(*pass.cache, entry.rows, at, sets, space);
  if (entry.rows.audit) {
    const Coverage& audited = entry.audited[entry.rows.state->head(at.layer, at.head)];
    if (audited.count > 0) record.coverage = audited.mean();
  }
  return record;
}

}  // namespace

void open_records(Pass& pass, bool watched) {
  pass.queries.resize(watched ? static_cast<std::size_t>(pass.shape.layers) * pass.batch_size * width_of(pass) : 0);
}

void keep_queries(Pass& pass, int layer, const float* q) {
  for (std::size_t b = 0; b < pass.batch_size && !pass.queries.empty(); ++b) {
    const BatchEntry& entry = pass.batch[b];
    if (entry.rows.decodes()) std::copy_n(pass.head_query(entry, q, 0, 0), width_of(pass), queries_of(pass, layer, b));
  }
}

void tell_heads(Pass& pass, const std::function<void(const HeadRecord&)>& see) {
  if (pass.queries.empty()) return;
  std::vector<std::int32_t> space;
  std::array<PublishedSet, 2> named;
  const auto group = static_cast<std::size_t>(pass.group) * static_cast<std::size_t>(pass.shape.head_dim);
  for (int layer = 0; layer < pass.shape.layers; ++layer) {
    for (std::size_t b = 0; b < pass.batch_size; ++b) {
      BatchEntry& entry = pass.batch[b];
      if (!entry.rows.decodes()) continue;
      for (int head = 0; head < pass.shape.kv_heads && !entry.failure; ++head) {
        HeadRecord record = record_of(pass, entry, {layer, head}, named, space);
        record.batch_index = static_cast<int>(b);
        record.query = queries_of(pass, layer, b) + static_cast<std::size_t>(head) * group;
        pass.guarded(entry, [&] { see(record); });
      }
    }
  }
}

}  // namespace glimpse::attention
