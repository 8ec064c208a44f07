#include "glimpse/attention/heat.h"

#include <algorithm>
#include <cmath>

namespace glimpse::attention {

/// A seed that begins before anything was decoded is the whole of the heat, so that pieces of a prompt leave what the
/// prompt leaves.
void fade_heat(const SequenceRows& rows) {
  const std::int64_t observe_from = rows.program->observe_from(rows.prompt_end);
  const std::int64_t first = std::max(rows.position, observe_from);
  const bool begins = rows.position <= observe_from;
  const double left = std::pow(rows.program->heat().decay, static_cast<double>(rows.position + rows.rows - first));
  rows.state->heat.scale(begins && rows.state->decode_steps == 0 ? 0.0 : left);
}

/// The mean over layers and query heads, which grows layer by layer.
void add_prompt_heat(const SequenceRows& rows, int layer, std::span<const double> sums) {
  const plan::Heat& how = rows.program->heat();
  const plan::ModelShape& shape = rows.program->shape();
  const int layers = how.per_layer ? 1 : shape.layers - how.first_layer;
  const double share = 1.0 / (static_cast<double>(layers) * shape.heads);
  std::vector<float>& heat = rows.state->heat.of(layer);
  heat.resize(std::max(heat.size(), sums.size()), 0.0F);
  for (std::size_t b = 0; b < sums.size(); ++b) heat[b] += static_cast<float>(sums[b] * share);
}

void add_step_heat(const SequenceRows& rows, HeatGains gains) {
  if (rows.kind == PassKind::draft) {
    rows.state->drafted_heat.push_back(std::move(gains));
  } else {
    rows.state->heat.take(gains, rows.program->heat().decay);
  }
}

}  // namespace glimpse::attention
