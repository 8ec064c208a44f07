#include "glimpse/attention/cuda/feedback.h"

#include <algorithm>

#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::attention::cuda {
namespace {

template <class Wanted>
bool some_head(const Program& program, const Wanted& wanted) {
  for (int layer = 0; layer < program.shape().layers && program.forgets(); ++layer) {
    for (const HeadOp& head : program.layer(layer).heads) {
      if (head.kept != nullptr && wanted(head.kept->rule)) return true;
    }
  }
  return false;
}

/// The first of the rows whose probabilities are wanted; as many as there are: none.
int first_wanted(const SequenceRows& rows) {
  const Program& program = *rows.program;
  if (rows.kind == PassKind::decode || rows.kind == PassKind::dense_decode) {
    return program.feeds() && some_head(program, plan::forgets_by_statistic) ? 0 : rows.rows;
  }
  if (rows.kind != PassKind::prompt || !some_head(program, observes_prompt)) return rows.rows;
  const std::int64_t unseen = program.observe_from(rows.prompt_end) - rows.position;
  return static_cast<int>(std::clamp<std::int64_t>(unseen, 0, rows.rows));
}

}  // namespace

void Feedback::begin(std::span<const SequenceRows> batch, std::span<const std::int64_t> lengths, int heads) {
  rows_.clear();
  pieces_.clear();
  std::int64_t most = 0;
  std::size_t all = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const SequenceRows& rows = batch[i];
    all += size(rows.rows);
    const int first = first_wanted(rows);
    if (first == rows.rows) continue;
    rows_.push_back(rows);
    pieces_.push_back({static_cast<std::int32_t>(i), rows.first_row + first, rows.rows - first,
                       static_cast<std::int32_t>(lengths[i] - rows.position - first)});
    for (int layer = 0; layer < cache_.shape().layers; ++layer) {
      for (int head = 0; head < cache_.shape().kv_heads; ++head) {
        most = std::max<std::int64_t>(most, cache_.view(rows.sequence, layer, head).slots);
      }
    }
  }
  stride_ = any() ? size(length_step(most)) : 0;
  group_ = heads / cache_.shape().kv_heads;
  if (any()) make_space(all, heads);
}

std::size_t Feedback::layer_values() const {
  return pieces_.size() * size(cache_.shape().kv_heads) * stride_;
}

void Feedback::make_space(std::size_t rows, int heads) {
  const std::size_t sums = layer_values() * size(cache_.shape().layers);
  const std::size_t lse = rows * size(heads);
  if (sums <= sums_.size() && lse <= lse_.size()) return;
  stream_.synchronize();  // what is queued may use the old memory
  ++moves_;
  if (lse > lse_.size()) {
    lse_ = {};
    lse_ = kernels::cuda::Array<float>(stream_, lse + lse / 4 + 256);
  }
  if (sums <= sums_.size()) return;
  sums_ = {};
  host_ = {};
  sums_ = kernels::cuda::Array<float>(stream_, sums);
  host_ = kernels::cuda::Pinned(stream_, sums * sizeof(float));
}

float* Feedback::sums(int layer) const {
  return sums_.pointer().raw() + size(layer) * layer_values();
}

void Feedback::finish() {
  if (!any()) return;
  sums_.memory().copy_out_later(0, host_, layer_values() * size(cache_.shape().layers) * sizeof(float));
}

void Feedback::end() {
  const auto* from = reinterpret_cast<const float*>(host_.raw());
  for (int layer = 0; layer < cache_.shape().layers && any(); ++layer) {
    for (std::size_t p = 0; p < pieces_.size(); ++p) {
      for (int head = 0; head < cache_.shape().kv_heads; ++head, from += stride_) {
        take(rows_[p], pieces_[p], {layer, head}, from);
      }
    }
  }
}

void Feedback::take(const SequenceRows& rows, const kernels::PromptRows& piece, plan::SlotId head, const float* sums) {
  const plan::Retention* const kept = rows.program->head(head.layer, head.head).kept;
  if (kept == nullptr || !plan::forgets_by_statistic(kept->rule)) return;
  SequenceState& state = *rows.state;
  std::vector<float>& statistic = state.statistics[state.head(head.layer, head.head)].own();
  const kernels::HeadView view = cache_.view(rows.sequence, head.layer, head.head);
  const std::size_t seen = size(view.slots - piece.behind + piece.rows);
  if (rows.decodes()) {
    mean_.assign(sums, sums + seen);
    for (float& value : mean_) value /= static_cast<float>(group_);
    if (chosen_.size() < seen) {
      chosen_.resize(seen);
      workspace_.resize(kernels::select_workspace(seen));
    }
    feed_statistic(
        kept->rule,
        {mean_, view.positions, group_, cache_.live_tokens(rows.sequence, head.layer, head.head), state.decode_steps},
        {chosen_, workspace_}, statistic);
    return;
  }
  if (!observes_prompt(kept->rule)) return;
  feed_prompt(kept->rule, {sums, 1, 0, view.positions, seen, group_}, rows.position + rows.rows, statistic);
}

}  // namespace glimpse::attention::cuda
