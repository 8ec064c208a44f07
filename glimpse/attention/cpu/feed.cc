#include "glimpse/attention/cpu/feed.h"

#include <algorithm>

#include "glimpse/attention/forget.h"
#include "glimpse/attention/heat.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

/// Position of an entry of an output, or -1 for a freed slot.
std::int32_t position_of(const HeadOutput& output, const kernels::HeadView& view, std::int32_t entry) {
  if (output.list != nullptr) return output.list[entry];
  return view.positions == nullptr ? entry : view.positions[entry];
}

}  // namespace

void feed(Pass& pass, const Call& call, BatchEntry& entry, const HeadOutput& output) {
  SequenceState& state = *entry.rows.state;
  const HeadOp& op = entry.head(call.layer, output.head);
  if (op.reads == HeadOp::Reads::window && !entry.dense) return;  // its window is not what heat speaks of
  const plan::Retention* kept = op.kept;
  const bool heats = entry.layer(call.layer).heats;
  CopyOnWrite<std::vector<float>>& kept_statistic = state.statistics[state.head(call.layer, output.head)];
  if (!heats && kept_statistic->empty()) return;

  const auto entries = static_cast<std::size_t>(output.entries);
  SelectionScratch& scratch = pass.thread(call.ith).selection;
  const std::span<float> mean(scratch.pooled.data(), entries);
  const float* lse = entry.lse.data() + static_cast<std::size_t>(output.head) * static_cast<std::size_t>(pass.group);
  kernels::pool_mean_probability(pass.scores.as<float>().data() + output.first_score, pass.score_stride, lse,
                                 output.queries, mean);
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(output.head)];
  if (heats) {
    auto& feed = entry.heat_feed[state.head(call.layer, output.head)];
    const std::int32_t block = state.heat.block();
    for (std::int32_t i = 0; i < output.entries; ++i) {
      const std::int32_t at = position_of(output, view, i) / block;
      if (feed.empty() || feed.back().block != at) feed.push_back({at, 0.0F});
      feed.back().mass += mean[static_cast<std::size_t>(i)];
    }
  }
  if (kept_statistic->empty() || kept == nullptr) return;
  feed_statistic(kept->rule,
                 {mean, output.list != nullptr ? output.list : view.positions, output.queries,
                  pass.cache->live_tokens(entry.rows.sequence, call.layer, output.head), state.decode_steps},
                 {scratch.chosen, scratch.workspace}, kept_statistic.own());
}

/// EvoSparse, section 3.1: h <- lambda h + s, s the mean over the layers and heads that read the block.
void end_feedback(Pass& pass, BatchEntry& entry) {
  SequenceState& state = *entry.rows.state;
  if (!entry.feeds() || !state.heat.any()) return;
  const plan::Heat& how = entry.rows.program->heat();
  const auto block = static_cast<std::size_t>(state.heat.block());
  const std::size_t blocks = (static_cast<std::size_t>(entry.tokens) + block - 1) / block;
  const int span = how.per_layer ? 1 : pass.shape.layers;
  HeatGains gains;
  for (int first = 0; first < pass.shape.layers; first += span) {
    std::vector<double>& sums = gains.emplace_back(blocks, 0.0);
    pass.heat_readers.assign(blocks, 0);
    for (int layer = std::max(first, how.first_layer); layer < first + span; ++layer) {
      for (int head = 0; head < pass.shape.kv_heads; ++head) {
        for (const BlockMass& fed : entry.heat_feed[state.head(layer, head)]) {
          sums[static_cast<std::size_t>(fed.block)] += static_cast<double>(fed.mass);
          ++pass.heat_readers[static_cast<std::size_t>(fed.block)];
        }
      }
    }
    for (std::size_t b = 0; b < blocks; ++b) {
      if (pass.heat_readers[b] > 0) sums[b] /= pass.heat_readers[b];
    }
  }
  add_step_heat(entry.rows, std::move(gains));
}

}  // namespace glimpse::attention
