#include "glimpse/attention/cuda/mean_tokens.h"

#include <algorithm>

#include "glimpse/attention/give_slots.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {

/// All sums of a sequence, as the host has them.
void MeanTokens::send(const SequenceRows& rows, Known& known) const {
  const std::size_t dim = size(rows.program->shape().head_dim);
  const std::vector<DroppedTokens>& dropped = rows.state->dropped;
  std::vector<double> sums(dropped.size() * 2 * dim, 0.0);
  known.held.assign(dropped.size(), 0);
  for (std::size_t i = 0; i < dropped.size(); ++i) {
    const auto at = sums.begin() + static_cast<std::ptrdiff_t>(i * 2 * dim);
    std::copy(dropped[i].k_sum.begin(), dropped[i].k_sum.end(), at);
    std::copy(dropped[i].v_sum.begin(), dropped[i].v_sum.end(), at + static_cast<std::ptrdiff_t>(dim));
    known.held[i] = dropped[i].end;
  }
  if (known.sums.size() != sums.size()) {
    stream_.synchronize();  // what is queued may use the old ones
    known.sums = {};
    known.sums = kernels::cuda::Array<double>(stream_, sums.size());
  }
  known.sums.set(sums);
}

void MeanTokens::follow(const SequenceRows& rows) {
  if (reads_everything(rows)) return;
  constexpr std::int64_t page = kernels::kPageTokens;
  const SequenceState& state = *rows.state;
  const plan::ModelShape& shape = rows.program->shape();
  const std::int64_t tokens = rows.position + rows.rows;
  Known& known = known_[rows.sequence];
  const std::uint64_t serial = cache_.serial(rows.sequence);
  bool same = known.serial == serial && known.ended && known.held.size() == state.dropped.size();
  for (std::size_t i = 0; i < state.dropped.size() && same; ++i) same = known.held[i] == state.dropped[i].end;
  if (!same) send(rows, known);
  known.serial = serial;
  known.takes = false;
  known.tokens.assign(state.dropped.size(), {});
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const HeadOp& op = rows.program->head(layer, head);
      if (!op.compensates()) continue;
      const std::int64_t local = plan::window_tokens(*op.window, tokens);
      if (op.window->sink + local >= tokens) continue;
      const std::size_t at = state.head(layer, head);
      const DroppedTokens& dropped = state.dropped[at];
      // What is drafted is no part of the state.
      const std::int64_t fixed = rows.kind == PassKind::draft ? rows.committed : tokens;
      const std::int64_t end = tokens - local;
      const std::int64_t take = std::max(dropped.end, std::min(end, fixed) / page * page);
      kernels::cuda::MeanToken& token = known.tokens[at];
      token.head = head;
      token.first = static_cast<std::int32_t>(dropped.first);
      token.held = static_cast<std::int32_t>(dropped.end);
      token.take = static_cast<std::int32_t>(take);
      token.end = static_cast<std::int32_t>(end);
      token.gap = static_cast<std::int32_t>((op.window->sink + page - 1) / page * page);
      token.gone = static_cast<std::int32_t>(tokens - cache_.view(rows.sequence, layer, head).slots);
      token.sums = known.sums.pointer().raw() + at * 2 * size(shape.head_dim);
      known.takes |= take > dropped.end;
    }
  }
  known.ended = !known.takes;
  followed_.push_back(rows.sequence);
}

void MeanTokens::make_space(int rows, int heads) {
  const std::size_t wanted = size(rows) * size(heads);
  if (!any() || wanted <= lse_.size()) return;
  stream_.synchronize();  // what is queued may use the old memory
  lse_ = {};
  lse_ = kernels::cuda::Array<float>(stream_, wanted + wanted / 4);
  ++moves_;
}

void MeanTokens::add(const PassTables& tables, const RowGroup& group, int layer,
                     std::vector<kernels::cuda::MeanToken>& to) const {
  to.clear();
  for (std::size_t i = group.first_entry; any() && i < group.first_entry + group.entries; ++i) {
    const SequenceRows& rows = tables.entries()[i].rows;
    if (std::find(followed_.begin(), followed_.end(), rows.sequence) == followed_.end()) continue;
    const Known& known = known_.at(rows.sequence);
    for (int head = 0; head < rows.program->shape().kv_heads; ++head) {
      kernels::cuda::MeanToken token = known.tokens[rows.state->head(layer, head)];
      if (token.end == 0) continue;
      token.row = rows.first_row - group.row;
      to.push_back(token);
    }
  }
}

void MeanTokens::end(const SequenceRows& rows) {
  if (std::find(followed_.begin(), followed_.end(), rows.sequence) == followed_.end()) return;
  Known& known = known_.at(rows.sequence);
  if (!known.takes) return;
  const std::vector<double> sums = known.sums.values();
  const std::size_t dim = size(rows.program->shape().head_dim);
  for (std::size_t i = 0; i < known.tokens.size(); ++i) {
    const kernels::cuda::MeanToken& token = known.tokens[i];
    if (token.take <= token.held) continue;
    DroppedTokens& dropped = rows.state->dropped[i];
    const auto at = sums.begin() + static_cast<std::ptrdiff_t>(i * 2 * dim);
    dropped.k_sum.assign(at, at + static_cast<std::ptrdiff_t>(dim));
    dropped.v_sum.assign(at + static_cast<std::ptrdiff_t>(dim), at + static_cast<std::ptrdiff_t>(2 * dim));
    dropped.end = known.held[i] = token.take;
  }
  known.takes = false;
  known.ended = true;
}

}  // namespace glimpse::attention::cuda
