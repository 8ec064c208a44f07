#include "glimpse/attention/cpu/decode.h"

#include <algorithm>
#include <cmath>

#include "glimpse/attention/cpu/audit.h"
#include "glimpse/attention/cpu/feed.h"
#include "glimpse/attention/cpu/low_rank.h"
#include "glimpse/attention/cpu/prompt.h"
#include "glimpse/attention/cpu/select.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/index.h"

namespace glimpse::attention {
namespace {

/// The slot of a position in a head that gives back whole pages only (a stream): those before the gap stay in place.
std::int64_t stream_slot(const kernels::HeadView& view, std::int64_t tokens, std::int64_t sink, std::int64_t position) {
  const std::int64_t page = kernels::kPageTokens;
  const std::int64_t gap_begin = (sink + page - 1) / page * page;
  return position < gap_begin ? position : position - (tokens - view.slots);
}

using kernels::Read;

/// A set is chosen from the scores that the head's own attention leaves.
bool selects_behind(const BatchEntry& entry, int layer, int head) {
  return !entry.dense && entry.head(layer, head).select >= 0 &&
         entry.rows.program->select(layer, head).from == SelectOp::From::attention;
}

Read read_of(const Pass& pass, const BatchEntry& entry, int layer, int head) {
  const HeadOp& op = entry.head(layer, head);
  Read read;
  if (!entry.dense) read = op.read_at(entry.tokens, entry.first_set);
  if (read.kind == Read::Kind::sets && pass.sets.everything(read.set)) read = {};
  read.scores = entry.feeds() || selects_behind(entry, layer, head) ? 1 : 0;
  return read;
}

/// Says what else is done with an output, and gives its scores room.
HeadOutput followed(Pass& pass, BatchEntry& entry, int layer, HeadOutput output) {
  const HeadOp& op = entry.head(layer, output.head);
  const Read& read = pass.tables.read(layer, entry.rows.first_row, output.head);
  output.selects = selects_behind(entry, layer, output.head);
  if (output.keeps_scores) pass.keep_scores(output);
  output.compensates = read.kind == Read::Kind::window && op.compensates();
  if (makes_keys(entry, {layer, output.head}, read)) output.key_rank = op.key_rank;
  return output;
}

void add_decode(Pass& pass, BatchEntry& entry, int layer, const kernels::AttendOp<kernels::Place::host>& op) {
  const int row = entry.rows.first_row;
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    pass.tables.read(layer, row, head) = read_of(pass, entry, layer, head);
  }
  const int index = static_cast<int>(&entry - pass.batch.data());
  const int first = pass.work.outputs();
  kernels::add_attended(op, row, pass.work, [&](const kernels::Output& output, int head) {
    return followed(pass, entry, layer, {output, index, head});
  });
  for (int number = first; number < pass.work.outputs(); ++number) {
    if (pass.work.output(number).compensates) pass.work.add_split(number, 0, 0);
  }
}

/// Takes what left the window before `end` into the sums of one head: after a prompt nearly all of it, so whole runs of
/// rows at a time.
void take_dropped(Pass& pass, const Call& call, const BatchEntry& entry, int head, std::int64_t end) {
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t page = kernels::kPageTokens;
  DroppedTokens& dropped = entry.rows.state->dropped[entry.rows.state->head(call.layer, head)];
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(head)];
  kernels::HeadView values = view;
  values.k_plane = view.v_plane;
  const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
  auto& rows = pass.thread(call.ith).dropped;
  rows.resize(kRows * dim);
  const auto add_rows = [&](const kernels::HeadView& from, std::int32_t slot, std::int32_t count,
                            std::vector<double>& sum) {
    kernels::read_keys(pass.cache->shape().format, from, slot, count, rows.data());
    for (std::size_t at = 0; at < static_cast<std::size_t>(count) * dim; at += dim) {
      for (std::size_t i = 0; i < dim; ++i) sum[i] += static_cast<double>(rows[at + i]);
    }
  };
  const std::int64_t sink = entry.head(call.layer, head).window->sink;
  const std::int64_t gap = (sink + page - 1) / page * page;  // slots before and after it are no neighbours
  while (dropped.end < end) {
    std::int64_t stop = std::min(end, dropped.end + kRows);
    if (dropped.end < gap) stop = std::min(stop, gap);
    const auto slot = static_cast<std::int32_t>(stream_slot(view, entry.tokens, sink, dropped.end));
    const auto count = static_cast<std::int32_t>(stop - dropped.end);
    add_rows(view, slot, count, dropped.k_sum);
    add_rows(values, slot, count, dropped.v_sum);
    dropped.end = stop;
  }
}

/// RazorAttention's compensation token (its section 3.3): the mean key and value of what the window lost, weighted by
/// their number, as one more partial result.
void run_mean_token(Pass& pass, const Call& call, const Split& split) {
  const HeadOutput& output = pass.work.output(split);
  BatchEntry& entry = pass.entry(output.batch);
  const plan::Selector& window = *entry.head(call.layer, output.head).window;
  take_dropped(pass, call, entry, output.head, entry.tokens - plan::window_tokens(window, entry.tokens));
  const DroppedTokens& dropped = entry.rows.state->dropped[entry.rows.state->head(call.layer, output.head)];
  const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
  const auto count = static_cast<double>(dropped.end - dropped.first);
  float* out = pass.work.partial(output, split.partial);
  float* lse = out + static_cast<std::size_t>(output.queries) * dim;
  const float* queries = pass.head_query(entry, call.q, 0, output.head);
  for (std::size_t j = 0; j < static_cast<std::size_t>(output.queries); ++j) {
    double dot = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      dot += static_cast<double>(queries[j * dim + i]) * dropped.k_sum[i] / count;
      out[j * dim + i] = static_cast<float>(dropped.v_sum[i] / count);
    }
    lse[j] = static_cast<float>(dot * static_cast<double>(pass.scale) + std::log(count));
  }
}

void finish_output(Pass& pass, const Call& call, const HeadOutput& output) {
  if (output.rows > 0) return finish_few_rows(pass, call, output);
  BatchEntry& entry = pass.entry(output.batch);
  pass.work.merge(output, call.out + output.query * static_cast<std::size_t>(pass.shape.head_dim));
  if (!output.keeps_scores) return;
  const std::size_t query =
      output.query - static_cast<std::size_t>(entry.rows.first_row) * static_cast<std::size_t>(pass.shape.heads);
  pass.work.sum(output, pass.thread(call.ith).lse, entry.lse.data() + query);
  if (entry.feeds()) feed(pass, call, entry, output);
  if (output.selects) select_head(pass, call, output.batch, output.head);
}

}  // namespace

void build_attend(Pass& pass, int layer) {
  pass.open_work();
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    if (!pass.batch[b].rows.decodes() && !pass.batch[b].failure)
      add_prompt(pass, pass.batch[b], static_cast<int>(b), layer);
  }
  const kernels::AttendOp<kernels::Place::host> op{.cache = pass.tables.cache(pass.cache->shape().format),
                                                   .rows = pass.tables.rows(),
                                                   .group = pass.group,
                                                   .scale = pass.scale,
                                                   .reads = pass.tables.reads_of(layer),
                                                   .sets = pass.sets.table()};
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    BatchEntry& entry = pass.batch[b];
    if (!entry.rows.decodes() || entry.failure) continue;
    int selecting = 0;
    for (const SelectOp& select : entry.layer(layer).selects) {
      if (!entry.dense && select.of_layer() && select.from == SelectOp::From::attention) selecting = select.heads;
    }
    pass.layer_remaining[b].store(selecting, std::memory_order_relaxed);
    add_decode(pass, entry, layer, op);
    if (entry.rows.audit) add_audit(pass, entry, static_cast<int>(b));
  }
  pass.seal_work(pass.shape.head_dim);
}

void run_split(Pass& pass, const Call& call, const Split& split, const Split* next) {
  const HeadOutput& output = pass.work.output(split);
  if (output.rows > 0) {
    run_few_rows(pass, call, split);
  } else if (output.compensates && split.begin == split.end) {
    run_mean_token(pass, call, split);
  } else if (output.key_rank > 0) {
    run_low_rank(pass, call, split);
  } else {
    kernels::attend_split(pass.reading(call), pass.work, split, next);
  }
  if (pass.work.finish(split)) finish_output(pass, call, output);
}

}  // namespace glimpse::attention
