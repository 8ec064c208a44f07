#include "glimpse/attention/cuda/audits.h"

#include <algorithm>
#include <cmath>

#include "glimpse/attention/give_slots.h"

namespace glimpse::attention::cuda {
namespace {

double mass_of(float read, float all) {
  return std::min(1.0, std::exp(static_cast<double>(read) - static_cast<double>(all)));
}

}  // namespace

void Audits::begin(std::span<const SequenceRows> batch, int rows, int heads) {
  any_ = std::any_of(batch.begin(), batch.end(), [](const SequenceRows& one) { return one.audit; });
  if (!any_) return;
  rows_ = rows;
  heads_ = heads;
  const std::size_t wanted = 2 * layer_values() * static_cast<std::size_t>(cache_.shape().layers);
  if (wanted <= lse_.size()) return;
  stream_.synchronize();  // what is queued may use the old memory
  ++moves_;
  lse_ = {};
  lse_ = kernels::cuda::Array<float>(stream_, wanted);
  host_ = {};
  host_ = kernels::cuda::Pinned(stream_, wanted * sizeof(float));
}

void Audits::finish() {
  if (!any_) return;
  lse_.memory().copy_out_later(0, host_,
                               2 * layer_values() * static_cast<std::size_t>(cache_.shape().layers) * sizeof(float));
}

Coverage Audits::captured(const SequenceRows& rows, plan::SlotId at) const {
  Coverage captured;
  const kernels::HeadView view = cache_.view(rows.sequence, at.layer, at.head);
  if (view.positions != nullptr || view.slots < rows.position + rows.rows) return captured;
  const HeadOp& op = rows.program->head(at.layer, at.head);
  if (reads_everything(rows) || op.reads == HeadOp::Reads::everything) {
    captured.add(1);
    return captured;
  }
  const int group = heads_ / rows.program->shape().kv_heads;
  const float* const read = reinterpret_cast<const float*>(host_.raw()) +
                            2 * layer_values() * static_cast<std::size_t>(at.layer) +
                            static_cast<std::size_t>(rows.first_row * heads_ + at.head * group);
  const float* const all = read + layer_values();
  const bool per_query = op.reads == HeadOp::Reads::set && rows.program->select(op.set.layer, op.set.head).lists > 1;
  double sum = 0;
  for (int j = 0; j < group; ++j) {
    const double mass = mass_of(read[j], all[j]);
    if (per_query) captured.add(mass);
    sum += mass;
  }
  if (!per_query) captured.add(sum / group);
  return captured;
}

void Audits::end(const SequenceRows& rows, ReadCounters& counters) const {
  if (!rows.audit) return;
  counters.audits = 1;
  const plan::ModelShape& shape = rows.program->shape();
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) counters.audited += captured(rows, {layer, head});
  }
}

}  // namespace glimpse::attention::cuda
