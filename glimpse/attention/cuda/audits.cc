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

void Audits::end(const SequenceRows& rows, ReadCounters& counters) const {
  if (!rows.audit) return;
  counters.audits = 1;
  const bool dense = reads_everything(rows);
  const Program& program = *rows.program;
  const int group = heads_ / program.shape().kv_heads;
  const auto* const lse = reinterpret_cast<const float*>(host_.raw());
  for (int layer = 0; layer < program.shape().layers; ++layer) {
    for (int head = 0; head < program.shape().kv_heads; ++head) {
      const kernels::HeadView view = cache_.view(rows.sequence, layer, head);
      if (view.positions != nullptr || view.slots < rows.position + rows.rows) continue;
      const HeadOp& op = program.head(layer, head);
      if (dense || op.reads == HeadOp::Reads::everything) {
        counters.audited.add(1);
        continue;
      }
      const float* const read = lse + 2 * layer_values() * static_cast<std::size_t>(layer) +
                                static_cast<std::size_t>(rows.first_row * heads_ + head * group);
      const float* const all = read + layer_values();
      const bool per_query = op.reads == HeadOp::Reads::set && program.select(op.set.layer, op.set.head).lists > 1;
      double sum = 0;
      for (int j = 0; j < group; ++j) {
        const double mass = mass_of(read[j], all[j]);
        if (per_query) counters.audited.add(mass);
        sum += mass;
      }
      if (!per_query) counters.audited.add(sum / group);
    }
  }
}

}  // namespace glimpse::attention::cuda
