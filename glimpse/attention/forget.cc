#include "glimpse/attention/forget.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::attention {
namespace {

using plan::RetentionRule;

/// Each step stamps its own token, so that what no step has stamped came as prompt, the first or a later one. Before
/// the first step only prompt_tokens tell: a fork brings tokens that another plan generated.
void stamp_new_tokens(std::vector<float>& stamps, const SequenceRows& rows) {
  const SequenceState& state = *rows.state;
  const auto before = static_cast<std::size_t>(rows.position + rows.rows - 1);
  if (stamps.empty()) {
    stamps.resize(std::min(before, static_cast<std::size_t>(state.prompt_tokens)), kPromptStamp);
    stamps.resize(before, 0.0F);
  }
  stamps.resize(before, kPromptStamp);
  stamps.push_back(static_cast<float>(state.decode_steps));
}

struct Heads {
  int layer = 0, first = 0, count = 1;
};

/// Heads [first, first + count) forget the same tokens: those of the least summed statistic. Equal ones: the later
/// goes, as everywhere the lower position wins; but of equal stamps the older token, for a step renews half of
/// all stamps at once, and the newest tokens would be the first to go.
void forget_by_statistic(kv::Cache& cache, const SequenceRows& rows, const Heads& of, ForgetSpace& space) {
  SequenceState& state = *rows.state;
  const std::int64_t tokens = rows.position + rows.rows;
  const plan::Retention& kept = *rows.program->head(of.layer, of.first).kept;
  const kernels::HeadView view = cache.view(rows.sequence, of.layer, of.first);
  const std::int64_t budget = plan::budget_tokens(kept.budget, tokens);
  const bool stamps = kept.rule == RetentionRule::stamps;
  const auto recent = kept.rule == RetentionRule::accumulated
                          ? static_cast<std::int64_t>(std::floor(kept.recent_share * static_cast<double>(budget)))
                          : 1;
  // Who may go: live tokens that are neither recent nor (RaaS) of the prompt.
  const std::int64_t newest = tokens - std::max<std::int64_t>(recent, 1);
  const std::vector<float>& own = *state.statistics[state.head(of.layer, of.first)];
  space.positions.clear();
  std::int64_t counted = 0;
  for (std::int32_t slot = 0; slot < view.slots; ++slot) {
    const std::int32_t position = view.positions == nullptr ? slot : view.positions[slot];
    if (position < 0 || (stamps && own[static_cast<std::size_t>(position)] == kPromptStamp)) continue;
    ++counted;
    if (position < newest) space.positions.push_back(position);
  }
  const std::int64_t surplus =
      std::min<std::int64_t>(counted - budget, static_cast<std::int64_t>(space.positions.size()));
  if (surplus <= 0) return;
  space.scores.resize(space.positions.size());
  for (std::size_t i = 0; i < space.positions.size(); ++i) space.scores[i] = {space.positions[i], 0.0F};
  for (int head = of.first; head < of.first + of.count; ++head) {
    const std::vector<float>& statistic = *state.statistics[state.head(of.layer, head)];
    for (ScoredUnit& token : space.scores) token.score += statistic[static_cast<std::size_t>(token.unit)];
  }
  const auto goes_first = [&](const ScoredUnit& a, const ScoredUnit& b) {
    return a.score < b.score || (a.score == b.score && (stamps ? a.unit < b.unit : a.unit > b.unit));
  };
  std::nth_element(space.scores.begin(), space.scores.begin() + (surplus - 1), space.scores.end(), goes_first);
  space.positions.resize(static_cast<std::size_t>(surplus));
  for (std::size_t i = 0; i < space.positions.size(); ++i) space.positions[i] = space.scores[i].unit;
  std::sort(space.positions.begin(), space.positions.end());
  for (int head = of.first; head < of.first + of.count; ++head) {
    cache.free_tokens(rows.sequence, of.layer, head, space.positions);
    cache.compact(rows.sequence, of.layer, head);
  }
}

}  // namespace

void forget(kv::Cache& cache, const SequenceRows& rows, ForgetSpace& space) {
  if (!rows.program->forgets()) return;
  const std::int64_t tokens = rows.position + rows.rows;
  const bool below = tokens < rows.program->min_context();
  const bool dense = reads_everything(rows);
  const plan::ModelShape& shape = rows.program->shape();
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const plan::Retention* kept = rows.program->head(layer, head).kept;
      if (kept == nullptr) continue;
      if (plan::forgets_by_statistic(kept->rule)) {
        auto& statistic = rows.state->statistics[rows.state->head(layer, head)].own();
        if (kept->rule == RetentionRule::stamps) stamp_new_tokens(statistic, rows);
        statistic.resize(static_cast<std::size_t>(tokens), 0.0F);
        const bool together = kept->per == plan::SetPer::layer;
        if (together && head + 1 < shape.kv_heads) continue;  // the last head decides for all
        if (below) continue;
        forget_by_statistic(cache, rows, together ? Heads{layer, 0, shape.kv_heads} : Heads{layer, head, 1}, space);
      } else if (kept->rule == RetentionRule::window && !dense) {
        // Not before it is in the sums, which grow while the step attends.
        const std::int64_t before = kept->compensates ? rows.state->dropped[rows.state->head(layer, head)].end : tokens;
        forget_window(cache, rows, {layer, head}, before, space.positions);
      }
    }
  }
}

void feed_statistic(RetentionRule rule, const StepFeed& feed, const FeedSpace& space, std::vector<float>& statistic) {
  const std::size_t entries = feed.mean.size();
  const auto position_of = [&](std::size_t i) {
    return feed.positions == nullptr ? static_cast<std::int32_t>(i) : feed.positions[i];
  };
  const auto at = [&](std::size_t i) -> float& { return statistic[static_cast<std::size_t>(position_of(i))]; };
  switch (rule) {
    case RetentionRule::accumulated:  // H2O: summed over the group
      for (std::size_t i = 0; i < entries; ++i) {
        if (position_of(i) >= 0) at(i) += feed.mean[i] * static_cast<float>(feed.group);
      }
      break;
    case RetentionRule::last_probability:
      for (std::size_t i = 0; i < entries; ++i) {
        if (position_of(i) >= 0) at(i) = feed.mean[i];
      }
      break;
    case RetentionRule::stamps: {                  // RaaS: the upper half of the step's probabilities renews its stamp
      for (std::size_t i = 0; i < entries; ++i) {  // below any live one
        if (position_of(i) < 0) feed.mean[i] = -1;
      }
      const std::size_t count = kernels::select_top_k(feed.mean, static_cast<std::size_t>((feed.live + 1) / 2),
                                                      space.chosen, space.workspace);
      for (std::size_t i = 0; i < count; ++i) {
        float& stamp = at(static_cast<std::size_t>(space.chosen[i]));
        if (stamp != kPromptStamp) stamp = static_cast<float>(feed.step);
      }
      break;
    }
    default:
      break;
  }
}

void feed_prompt(RetentionRule rule, const PromptFeed& feed, std::int64_t tokens, std::vector<float>& statistic) {
  const bool last = rule == RetentionRule::last_probability;
  const float share = last ? 1.0F / static_cast<float>(feed.group) : 1.0F;  // TOVA: mean; H2O: summed over the group
  statistic.resize(static_cast<std::size_t>(tokens), 0.0F);
  if (last) std::fill(statistic.begin(), statistic.end(), 0.0F);
  for (std::size_t piece = 0; piece < feed.pieces; ++piece) {
    const float* const sums = feed.sums + piece * feed.stride;
    for (std::size_t slot = 0; slot < feed.slots; ++slot) {
      const auto position = feed.positions == nullptr ? static_cast<std::int32_t>(slot) : feed.positions[slot];
      if (position >= 0) statistic[static_cast<std::size_t>(position)] += share * sums[slot];
    }
  }
}

bool observes_prompt(RetentionRule rule) {
  return plan::forgets_by_statistic(rule) && rule != RetentionRule::stamps;
}

}  // namespace glimpse::attention
