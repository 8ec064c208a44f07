#include "glimpse/attention/cpu/forget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

using plan::RetentionRule;

/// Each step stamps its own token, so that what no step has stamped came as prompt, the first or a later one. Before
/// the first step only prompt_tokens tell: a fork brings tokens that another plan generated.
void stamp_new_tokens(std::vector<float>& stamps, const BatchEntry& entry) {
  const SequenceState& state = *entry.rows.state;
  const auto before = static_cast<std::size_t>(entry.tokens - 1);
  if (stamps.empty()) {
    stamps.resize(std::min(before, static_cast<std::size_t>(state.prompt_tokens)), kPromptStamp);
    stamps.resize(before, 0.0F);
  }
  stamps.resize(before, kPromptStamp);
  stamps.push_back(static_cast<float>(state.decode_steps));
}

/// Heads [first_head, first_head + heads) forget the same tokens: those of the least summed statistic. Equal ones: the
/// later goes, as everywhere the lower position wins; but of equal stamps the older token, for a step renews half of
/// all stamps at once, and the newest tokens would be the first to go.
void forget_by_statistic(Pass& pass, BatchEntry& entry, int layer, int first_head, int heads) {
  SequenceState& state = *entry.rows.state;
  const plan::Retention& kept = *entry.head(layer, first_head).kept;
  const kernels::HeadView view = pass.cache->view(entry.rows.sequence, layer, first_head);
  const std::int64_t budget = plan::budget_tokens(kept.budget, entry.tokens);
  const bool stamps = kept.rule == RetentionRule::stamps;
  const auto recent = kept.rule == RetentionRule::accumulated
                          ? static_cast<std::int64_t>(std::floor(kept.recent_share * static_cast<double>(budget)))
                          : 1;
  // Who may go: live tokens that are neither recent nor (RaaS) of the prompt.
  const std::int64_t newest = entry.tokens - std::max<std::int64_t>(recent, 1);
  const std::vector<float>& own = *state.statistics[state.head(layer, first_head)];
  pass.evicted.clear();
  std::int64_t counted = 0;
  for (std::int32_t slot = 0; slot < view.slots; ++slot) {
    const std::int32_t position = view.positions == nullptr ? slot : view.positions[slot];
    if (position < 0 || (stamps && own[static_cast<std::size_t>(position)] == kPromptStamp)) continue;
    ++counted;
    if (position < newest) pass.evicted.push_back(position);
  }
  const std::int64_t surplus = std::min<std::int64_t>(counted - budget, static_cast<std::int64_t>(pass.evicted.size()));
  if (surplus <= 0) return;
  pass.evict_scores.resize(pass.evicted.size());
  for (std::size_t i = 0; i < pass.evicted.size(); ++i) pass.evict_scores[i] = {pass.evicted[i], 0.0F};
  for (int head = first_head; head < first_head + heads; ++head) {
    const std::vector<float>& statistic = *state.statistics[state.head(layer, head)];
    for (ScoredUnit& token : pass.evict_scores) token.score += statistic[static_cast<std::size_t>(token.unit)];
  }
  const auto goes_first = [&](const ScoredUnit& a, const ScoredUnit& b) {
    return a.score < b.score || (a.score == b.score && (stamps ? a.unit < b.unit : a.unit > b.unit));
  };
  std::nth_element(pass.evict_scores.begin(), pass.evict_scores.begin() + (surplus - 1), pass.evict_scores.end(),
                   goes_first);
  pass.evicted.resize(static_cast<std::size_t>(surplus));
  for (std::size_t i = 0; i < pass.evicted.size(); ++i) pass.evicted[i] = pass.evict_scores[i].unit;
  std::sort(pass.evicted.begin(), pass.evicted.end());
  for (int head = first_head; head < first_head + heads; ++head) {
    pass.cache->free_tokens(entry.rows.sequence, layer, head, pass.evicted);
    pass.cache->compact(entry.rows.sequence, layer, head);
  }
}

}  // namespace

void forget(Pass& pass, BatchEntry& entry) {
  if (!entry.rows.program->forgets()) return;
  const bool below = entry.tokens < entry.rows.program->min_context();
  for (int layer = 0; layer < pass.shape.layers; ++layer) {
    for (int head = 0; head < pass.shape.kv_heads; ++head) {
      const plan::Retention* kept = entry.head(layer, head).kept;
      if (kept == nullptr) continue;
      if (plan::forgets_by_statistic(kept->rule)) {
        auto& statistic = entry.rows.state->statistics[entry.rows.state->head(layer, head)].own();
        if (kept->rule == RetentionRule::stamps) stamp_new_tokens(statistic, entry);
        statistic.resize(static_cast<std::size_t>(entry.tokens), 0.0F);
        if (kept->per == plan::SetPer::layer && head + 1 < pass.shape.kv_heads)
          continue;  // the last head decides for all
        const bool together = kept->per == plan::SetPer::layer;
        if (!below) forget_by_statistic(pass, entry, layer, together ? 0 : head, together ? pass.shape.kv_heads : 1);
      } else if (kept->rule == RetentionRule::window && !entry.dense) {
        // Not before it is in the sums, which grow while the step attends.
        const std::int64_t before =
            kept->compensates ? entry.rows.state->dropped[entry.rows.state->head(layer, head)].end : entry.tokens;
        forget_window(*pass.cache, entry.rows, {layer, head}, before, pass.evicted);
      }
    }
  }
}

}  // namespace glimpse::attention
