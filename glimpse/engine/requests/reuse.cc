#include "glimpse/engine/requests/reuse.h"

#include <fmt/format.h>

#include <algorithm>

namespace glimpse::engine {

std::int64_t common_prefix(std::span<const text::Token> a, std::span<const text::Token> b) {
  return std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin())
             .first -
         a.begin();
}

Share share_of(const Held& held, const Wanted& wanted) {
  const plan::Plan& plan = *wanted.plan;
  const auto length = static_cast<std::int64_t>(wanted.prompt.size());
  const std::int64_t common = common_prefix(held.tokens, wanted.prompt);
  const bool begins = common == static_cast<std::int64_t>(held.tokens.size());
  const bool same_plan = *held.plan == plan;
  const bool observes_all = plan.prefill.observe == plan::Observe::all;
  if (same_plan && begins && common == length && held.logits) return {common, true, ""};
  if (same_plan && begins && common < length && (observes_all || held.decode_steps > 0)) return {common, true, ""};
  if (observes_all) {
    return {0, false,
            fmt::format("'{}' observes the whole prompt, and what there is ends elsewhere or is another plan's",
                        plan.policy)};
  }
  if (!held.whole) {
    return {0, false, fmt::format("heads forgot tokens under '{}'", held.plan->policy)};
  }
  if (held.plan->prefill.sparse && !same_plan) {
    return {0, false, fmt::format("it is a sparse prefill by another plan ('{}')", held.plan->policy)};
  }
  if (plan.prefill.sparse && !same_plan) {
    return {0, false,
            fmt::format("'{}' prefills sparsely, and the prefill that is there ('{}') gave other keys and values",
                        plan.policy, held.plan->policy)};
  }
  Share share{std::min(common, length - 1), false, ""};
  const auto cut = [&](std::int64_t most, std::string_view why) {
    if (share.tokens <= most) return;
    share.tokens = std::max<std::int64_t>(0, most);
    share.why_less = why;
  };
  if (held.decode_steps > 0) cut(held.prompt_tokens, "what follows was decoded, not prefilled");
  if (plan.prefill.observe == plan::Observe::last_rows) {
    cut(length - plan.prefill.observe_rows, "the plan observes the last rows of the prompt");
  }
  if (share.tokens >= wanted.chunk) {
    cut(share.tokens / wanted.chunk * wanted.chunk,
        "whole prefill chunks are used, for the same bits as a prefill from the start");
  } else if (plan.prefill.sparse) {
    const std::int64_t tile = plan.prefill.tile_tokens(plan.shape.group());
    cut(share.tokens / tile * tile, "whole tiles of the sparse prefill are used");
  }
  return share;
}

}  // namespace glimpse::engine
