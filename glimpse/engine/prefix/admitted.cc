#include "glimpse/engine/prefix/admitted.h"

#include <algorithm>

#include "glimpse/engine/requests/reuse.h"
#include "glimpse/kv/cache.h"

namespace glimpse::engine {
namespace {

/// Rows of the offer that the level lets pass.
std::int64_t rows_of(const Offered& offered, const Asked& asked, bool own_plan) {
  switch (asked.reuse) {
    case Reuse::exact:
      if (!asked.plan->prefill.sparse) return offered.made->whole_chunks(asked.chunk, Made::dense_chunk);
      return own_plan ? offered.made->whole_chunks(asked.chunk, Made::sparse_chunk) : 0;
    case Reuse::dense:
      return offered.made->dense_rows(own_plan);
    case Reuse::any:
      return static_cast<std::int64_t>(offered.tokens.size());
    case Reuse::none:
      break;
  }
  return 0;
}

}  // namespace

Admitted admitted(const Offered& offered, const Asked& asked) {
  const plan::Prefill& prefill = asked.plan->prefill;
  const bool own_plan = *offered.plan == *asked.plan;
  const auto length = static_cast<std::int64_t>(asked.prompt.size());
  const auto held = static_cast<std::int64_t>(offered.tokens.size());
  const std::int64_t common = common_prefix(offered.tokens, asked.prompt);
  const bool same_prompt = common == length && held == length;
  if (asked.reuse == Reuse::none) return {};
  if (same_prompt && own_plan && offered.at_end) {
    const bool fits = asked.reuse == Reuse::exact ? offered.made->is_prefill_alone(asked.chunk, length)
                                                  : rows_of(offered, asked, own_plan) == length;
    if (fits) return {length, true};
  }
  // Rows alone: what attention keeps is made anew from there, so nothing of what the plan observes may be missing.
  if (!offered.whole || prefill.observe == plan::Observe::all) return {};
  const std::int64_t observed = prefill.observe == plan::Observe::last_rows ? prefill.observe_rows : 1;
  std::int64_t rows = std::min({common, length - observed, rows_of(offered, asked, own_plan)});
  const std::int64_t unit = asked.reuse == Reuse::exact ? asked.chunk
                            : prefill.sparse            ? prefill.tile_tokens(asked.plan->shape.group())
                                                        : 1;
  rows = rows / unit * unit;
  return {rows < kernels::kPageTokens ? 0 : rows, false};
}

}  // namespace glimpse::engine
