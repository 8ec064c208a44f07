#include "glimpse/attention/head_record.h"

#include <algorithm>

#include "glimpse/attention/choose.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/kv/inspect.h"

namespace glimpse::attention {

HeadRecord describe_head(const kv::Cache& cache, const SequenceRows& rows, plan::SlotId at, const HeadSets& sets,
                         std::vector<std::int32_t>& space) {
  const HeadOp& op = rows.program->head(at.layer, at.head);
  const std::int64_t tokens = rows.position + rows.rows;
  const bool dense = reads_everything(rows);
  HeadRecord record;
  record.layer = at.layer;
  record.kv_head = at.head;
  record.position = rows.position;
  record.role = op.role;
  record.budget = !dense && op.budget != nullptr ? plan::budget_tokens(*op.budget, tokens) : tokens;
  record.published = sets.published;
  space.clear();
  if (sets.read != nullptr && !sets.read->everything) {
    for (const auto& list : sets.read->lists) space.insert(space.end(), list.begin(), list.end());
    if (sets.read->lists.size() > 1) {
      std::sort(space.begin(), space.end());
      space.erase(std::unique(space.begin(), space.end()), space.end());
      record.query_sets = sets.read->lists;
    }
  } else if (!dense && op.reads == HeadOp::Reads::window) {
    window_positions(*op.window, tokens, space);
  }
  if (space.empty() && cache.live_tokens(rows.sequence, at.layer, at.head) < tokens) {
    space = kv::live_positions(cache, rows.sequence, at.layer, at.head);  // all that the head has not forgotten
    if (op.kept != nullptr) record.budget = plan::budget_tokens(op.kept->budget, tokens);
  }
  record.reads_all = space.empty();
  record.tokens = space;
  return record;
}

}  // namespace glimpse::attention
