#include "glimpse/attention/give_slots.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "glimpse/base/error.h"

namespace glimpse::attention {

bool reads_everything(const SequenceRows& rows) {
  return !rows.decodes() || rows.kind == PassKind::dense_decode || rows.program->dense_at(rows.position + rows.rows);
}

DenseReason dense_reason(const SequenceRows& rows) {
  if (rows.kind == PassKind::verify) return DenseReason::verify;
  const Program& program = *rows.program;
  if (program.dense_at(std::numeric_limits<std::int32_t>::max())) return DenseReason::method;
  const std::int64_t tokens = rows.position + rows.rows;
  if (rows.kind == PassKind::dense_decode && !program.dense_at(tokens)) return DenseReason::drafts;
  return tokens < program.min_context() ? DenseReason::context : DenseReason::budget;
}

bool ends_prompt(const SequenceRows& rows) {
  const std::int64_t tokens = rows.position + rows.rows;
  if (rows.kind != PassKind::prompt || tokens != rows.prompt_end) return false;
  return rows.state->is_prompt(tokens, rows.program->reads_landmarks());
}

void give_slots(kv::Cache& cache, std::span<const SequenceRows> batch, std::vector<kv::Mark>& marks) {
  // One extend is all or nothing by itself; several need a way back.
  marks.clear();
  try {
    for (const SequenceRows& rows : batch) {
      check(!rows.decodes() || rows.rows == 1, "decoding takes one row of a sequence");
      if (reads_everything(rows) || rows.audit) cache.recall_all(rows.sequence);
      if (rows.kind == PassKind::correct) {
        const std::int64_t length = cache.length(rows.sequence);
        check(rows.position + rows.rows <= length, "corrected tokens are there");
        cache.rewrite(rows.sequence, length - rows.position);
        continue;
      }
      check(cache.length(rows.sequence) == rows.position, "rows continue where their sequence ends");
      if (batch.size() > 1) marks.push_back(cache.mark(rows.sequence));
      cache.extend(rows.sequence, rows.rows);
    }
  } catch (...) {
    for (auto mark = marks.rbegin(); mark != marks.rend(); ++mark) cache.restore(*mark);
    throw;
  }
  for (const kv::Mark& mark : marks) cache.commit(mark);
}

void forget_window(kv::Cache& cache, const SequenceRows& rows, plan::SlotId head, std::int64_t before,
                   std::vector<std::int32_t>& space) {
  constexpr std::int64_t page = kernels::kPageTokens;
  const plan::Retention& kept = *rows.program->head(head.layer, head.head).kept;
  const std::int64_t tokens = rows.position + rows.rows;
  const std::int64_t window = plan::budget_tokens(kept.budget, tokens) - kept.sink;
  const std::int64_t gone = tokens - cache.view(rows.sequence, head.layer, head.head).slots;
  const std::int64_t first = (kept.sink + page - 1) / page * page + gone;
  const std::int64_t last = std::min((tokens - std::max<std::int64_t>(window, 1)) / page, before / page) * page;
  if (last <= first) return;
  space.resize(static_cast<std::size_t>(last - first));
  std::iota(space.begin(), space.end(), static_cast<std::int32_t>(first));
  cache.free_tokens(rows.sequence, head.layer, head.head, space);
}

}  // namespace glimpse::attention
