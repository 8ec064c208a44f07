#include "glimpse/attention/cpu/head_records.h"

#include "glimpse/attention/head_record.h"

namespace glimpse::attention {

void record_heads(Pass& pass, int layer, const float* q, const std::function<void(const HeadRecord&)>& see) {
  std::vector<std::int32_t> read;
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    BatchEntry& entry = pass.batch[b];
    if (!entry.rows.decodes()) continue;
    for (int head = 0; head < pass.shape.kv_heads && !entry.failure; ++head) {
      std::array<PublishedSet, 2> named;
      std::size_t count = 0;
      const HeadSets sets = sets_of(entry.rows, {layer, head}, entry.dense, [&](plan::SlotId slot) {
        named[count] = pass.sets.published(entry.set_of(slot), entry.lists_of(slot), entry.tokens);
        return &named[count++];
      });
      HeadRecord record = describe_head(*pass.cache, entry.rows, {layer, head}, sets, read);
      record.batch_index = static_cast<int>(b);
      record.query = pass.head_query(entry, q, 0, head);
      if (entry.rows.audit) {
        const Coverage& audited = entry.audited[entry.rows.state->head(layer, head)];
        if (audited.count > 0) record.coverage = audited.mean();
      }
      pass.guarded(entry, [&] { see(record); });  // who watches one sequence fails that one alone
    }
  }
}

}  // namespace glimpse::attention
