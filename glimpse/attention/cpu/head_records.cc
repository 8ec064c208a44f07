#include "glimpse/attention/cpu/head_records.h"

#include <algorithm>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/kv/inspect.h"

namespace glimpse::attention {

void record_heads(Pass& pass, int layer, const float* q, const std::function<void(const HeadRecord&)>& see) {
  std::vector<std::int32_t> read;
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    BatchEntry& entry = pass.batch[b];
    if (!entry.rows.decodes()) continue;
    for (int head = 0; head < pass.shape.kv_heads && !entry.failure; ++head) {
      const HeadOp& op = entry.head(layer, head);
      HeadRecord record;
      record.batch_index = static_cast<int>(b);
      record.layer = layer;
      record.kv_head = head;
      record.position = entry.rows.position;
      record.role = op.role;
      record.budget = entry.tokens;
      record.query = pass.head_query(entry, q, 0, head);
      read.clear();
      const PublishedSet* set = nullptr;
      if (!entry.dense && op.budget != nullptr) record.budget = plan::budget_tokens(*op.budget, entry.tokens);
      if (!entry.dense && op.select >= 0) {
        record.published = &entry.rows.state->sets.at(entry.rows.program->select(layer, head).writes);
      }
      if (!entry.dense && op.reads == HeadOp::Reads::set) set = &entry.rows.state->sets.at(op.set);
      if (set != nullptr && !set->everything) {
        for (const auto& list : set->lists) read.insert(read.end(), list.begin(), list.end());
        if (set->lists.size() > 1) {
          std::sort(read.begin(), read.end());
          read.erase(std::unique(read.begin(), read.end()), read.end());
          record.query_sets = set->lists;
        }
      } else if (!entry.dense && op.reads == HeadOp::Reads::window) {
        window_positions(*op.window, entry.tokens, read);
      }
      if (read.empty() && pass.cache->live_tokens(entry.rows.sequence, layer, head) < entry.tokens) {
        read =
            kv::live_positions(*pass.cache, entry.rows.sequence, layer, head);  // all that the head has not forgotten
        if (op.kept != nullptr) record.budget = plan::budget_tokens(op.kept->budget, entry.tokens);
      }
      if (entry.rows.audit) {
        const Coverage& audited = entry.audited[entry.rows.state->head(layer, head)];
        if (audited.count > 0) record.coverage = audited.mean();
      }
      record.reads_all = read.empty();
      record.tokens = read;
      pass.guarded(entry, [&] { see(record); });  // who watches one sequence fails that one alone
    }
  }
}

}  // namespace glimpse::attention
