// What each head read and handed on, for traces and tests.
#include <algorithm>

#include "glimpse/attention/runner.h"
#include "glimpse/attention/runner_state.h"
#include "glimpse/kv/inspect.h"

namespace glimpse::attention {

void Runner::State::observe(int layer, const float* q, const std::function<void(const HeadRecord&)>& see) {
  std::vector<std::int32_t> read;
  for (std::size_t b = 0; b < batch_size; ++b) {
    BatchEntry& entry = batch[b];
    if (!entry.rows.decodes()) continue;
    for (int head = 0; head < shape.kv_heads && !entry.failure; ++head) {
      const plan::Role& head_role = role(entry, layer, head);
      HeadRecord record;
      record.batch_index = static_cast<int>(b);
      record.layer = layer;
      record.kv_head = head;
      record.position = entry.rows.position;
      record.role = &head_role;
      record.budget = entry.tokens;
      record.query = head_query(entry, q, 0, head);
      read.clear();
      const PublishedSet* set = nullptr;
      if (!entry.dense && head_role.kind == plan::RoleKind::select) {
        const plan::Selector& how = selector(entry, head_role);
        const PublishedSet& own = entry.rows.state->sets.at({layer, how.per == plan::SetPer::layer ? 0 : head});
        record.published = &own;
        record.budget = plan::budget_tokens(how.budget, entry.tokens);
        if (head_role.attends_set) set = &own;
      } else if (!entry.dense && head_role.kind == plan::RoleKind::reuse) {
        set = &entry.rows.state->sets.at(head_role.reads);
        const plan::Role& source = role(entry, head_role.reads.layer, head_role.reads.head);
        record.budget = plan::budget_tokens(selector(entry, source).budget, entry.tokens);
      }
      if (set != nullptr && !set->everything) {
        for (const auto& list : set->lists) read.insert(read.end(), list.begin(), list.end());
        if (set->lists.size() > 1) {
          std::sort(read.begin(), read.end());
          read.erase(std::unique(read.begin(), read.end()), read.end());
          record.query_sets = set->lists;
        }
      } else if (!entry.dense && head_role.kind == plan::RoleKind::stream) {
        const plan::Selector& window = selector(entry, head_role);
        record.budget = plan::budget_tokens(window.budget, entry.tokens);
        const std::int64_t local = plan::window_tokens(window, entry.tokens);
        for (std::int64_t i = 0; i < entry.tokens; ++i) {
          if (i < window.sink || i >= entry.tokens - local) read.push_back(static_cast<std::int32_t>(i));
        }
      }
      if (read.empty() && cache->live_tokens(entry.rows.sequence, layer, head) < entry.tokens) {
        read = kv::live_positions(*cache, entry.rows.sequence, layer, head);  // all that the head has not forgotten
        const plan::Retention* kept = retention(entry, head_role);
        if (kept != nullptr) record.budget = plan::budget_tokens(kept->budget, entry.tokens);
      }
      if (entry.rows.audit) {
        const Coverage& audited = entry.audited[entry.rows.state->head(layer, head)];
        if (audited.count > 0) record.coverage = audited.mean();
      }
      record.reads_all = read.empty();
      record.tokens = read;
      guarded(entry, [&] { see(record); });  // who watches one sequence fails that one alone
    }
  }
}

}  // namespace glimpse::attention
