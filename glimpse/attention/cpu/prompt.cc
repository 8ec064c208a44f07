#include "glimpse/attention/cpu/prompt.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "glimpse/attention/cpu/low_rank.h"
#include "glimpse/attention/cpu/tiles.h"
#include "glimpse/attention/forget.h"
#include "glimpse/attention/heat.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

/// Keys of one item of few rows. Fixed, so that results do not depend on threads.
constexpr std::int32_t kKeyRange = 2048;
static_assert(kKeyRange % kernels::kSplitTokens == 0);

void add_rows(Pass& pass, const BatchEntry& entry, int index) {
  // Later tiles see more keys: the longest first, so that no thread ends alone.
  const int rows = kernels::prefill_tile_rows(pass.group);
  const int span = entry.prompt.tiles > 0 ? entry.prompt.tile_tokens : entry.rows.rows;
  for (int first = (entry.rows.rows - 1) / span * span; first >= 0; first -= span) {
    const int last = std::min(entry.rows.rows, first + span);
    for (int begin = first + (last - first - 1) / rows * rows; begin >= first; begin -= rows) {
      for (int head = 0; head < pass.shape.kv_heads; ++head) {
        pass.items.add({Item::Kind::prefill, index, head, begin, std::min(last, begin + rows)});
      }
    }
  }
}

/// Verified rows say what decoding them one by one would: as many as the products with weights do that for.
bool verifies_few(const BatchEntry& entry) {
  return entry.rows.kind == PassKind::verify && entry.rows.rows <= kernels::kFewRows;
}

/// Few rows against a long context: as items over rows they would leave threads idle. Whether a plan observes them is
/// no matter: what a prompt leaves in the cache depends on its pieces alone.
bool splits_keys(Pass& pass, const BatchEntry& entry) {
  if (verifies_few(entry)) return true;
  return entry.prompt.tiles == 0 && entry.rows.rows <= kernels::prefill_tile_rows(pass.group) &&
         entry.tokens > kKeyRange;
}

void add_few_rows(Pass& pass, const BatchEntry& entry, int index) {
  const bool verify = verifies_few(entry);
  const int first = pass.work.outputs();
  std::int32_t most = 0;
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    HeadOutput output = pass.output_of(index, head);
    output.rows = entry.rows.rows;
    output.queries *= output.rows;
    output.entries = output.view->slots;
    pass.work.add(output);
    most = std::max(most, output.entries);
  }
  for (std::int32_t begin = 0; begin < most; begin += kKeyRange) {
    for (int number = first; number < pass.work.outputs(); ++number) {
      const HeadOutput& output = pass.work.output(number);
      if (begin >= output.entries) continue;
      const std::int32_t end = std::min(output.entries, begin + kKeyRange);
      const int partials = verify ? (end - begin + kernels::kSplitTokens - 1) / kernels::kSplitTokens : 1;
      pass.work.add_split(number, begin, end, partials);
    }
  }
}

void take_observed(Pass& pass, BatchEntry& entry, int layer, int head) {
  PromptWork& prompt = entry.prompt;
  SequenceState& state = *entry.rows.state;
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const auto kv_heads = static_cast<std::size_t>(pass.shape.kv_heads);
  const std::size_t items = prompt.observed.size() / (kv_heads * tokens);
  // Sums are by slot, what is kept is by position: a head that has forgotten tokens has fewer slots.
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(head)];
  const float* const sums = prompt.observed.data() + static_cast<std::size_t>(head) * tokens;
  const std::size_t stride = kv_heads * tokens;
  const plan::Retention* kept = entry.head(layer, head).kept;
  if (kept != nullptr && observes_prompt(kept->rule)) {
    const PromptFeed feed{sums, items, stride, view.positions, static_cast<std::size_t>(view.slots), pass.group};
    feed_prompt(kept->rule, feed, entry.tokens, state.statistics[state.head(layer, head)].own());
  }
  const bool heats = entry.layer(layer).heats;
  const auto block = static_cast<std::size_t>(state.heat.block());
  const std::size_t blocks = (tokens + block - 1) / block;
  for (std::size_t item = 0; heats && item < items; ++item) {
    double* to = prompt.observed_blocks.data() + static_cast<std::size_t>(head) * blocks;
    for (std::int32_t slot = 0; slot < view.slots; ++slot) {
      const std::int32_t position = view.positions == nullptr ? slot : view.positions[slot];
      if (position >= 0)
        to[static_cast<std::size_t>(position) / block] +=
            static_cast<double>(sums[item * stride + static_cast<std::size_t>(slot)]);
    }
  }
  if (prompt.remaining[pass.shape.kv_heads].fetch_sub(1, std::memory_order_acq_rel) != 1 || !heats) return;
  // The last head of the layer has the sums of all.
  const std::span<double> all(prompt.observed_blocks.data(), blocks);
  for (std::size_t i = blocks; i < kv_heads * blocks; ++i) all[i % blocks] += prompt.observed_blocks[i];
  add_prompt_heat(entry.rows, layer, all);
}

/// Adds up the probabilities that the item's observed rows gave each key, by itself; the last item of a head takes
/// all of them in order.
void observe_rows(Pass& pass, const Call& call, const Item& item, kernels::PrefillItem work) {
  BatchEntry& entry = pass.entry(item.batch);
  PromptWork& prompt = entry.prompt;
  const plan::Retention* kept = entry.head(call.layer, item.head).kept;
  const bool heats = entry.layer(call.layer).heats;
  if (heats || (kept != nullptr && observes_prompt(kept->rule))) {
    const auto skip =
        static_cast<int>(std::max<std::int64_t>(0, prompt.observe_from - (entry.rows.position + item.begin)));
    work.query += static_cast<std::size_t>(skip) * work.query_stride;
    work.lse += skip * pass.group;
    work.first_slot += skip;
    work.rows -= skip;
    auto& weights = pass.thread(call.ith).weights;
    weights.assign(static_cast<std::size_t>(work.rows), 1.0F);
    for (int row = 0; heats && row < work.rows; ++row) {  // each row is a step of the heat
      const auto age = static_cast<double>(entry.rows.rows - 1 - (item.begin + skip + row));
      weights[static_cast<std::size_t>(row)] = static_cast<float>(std::pow(entry.rows.program->heat().decay, age));
    }
    const int rows = kernels::prefill_tile_rows(pass.group);
    const std::int64_t unseen = std::max<std::int64_t>(0, prompt.observe_from - entry.rows.position);
    const auto number = static_cast<std::size_t>(item.begin / rows - static_cast<int>(unseen / rows));
    kernels::ColumnSumsItem columns;
    columns.tile = work;
    columns.weights = weights.data();
    columns.end = work.head->slots;
    columns.sums = prompt.observed.data() +
                   (number * static_cast<std::size_t>(pass.shape.kv_heads) + static_cast<std::size_t>(item.head)) *
                       static_cast<std::size_t>(entry.tokens);
    kernels::prefill_column_sums(pass.cache->shape().format, columns, pass.thread(call.ith).prefill);
  }
  if (prompt.remaining[item.head].fetch_sub(1, std::memory_order_acq_rel) == 1)
    take_observed(pass, entry, call.layer, item.head);
}

/// What the rows of an output saw is known from its splits.
void observe_few_rows(Pass& pass, const Call& call, const HeadOutput& output) {
  const Item item{Item::Kind::prefill, output.batch, output.head, 0, output.rows};
  kernels::PrefillItem work = pass.prompt_item(item, call.q);
  ThreadScratch& thread = pass.thread(call.ith);
  thread.lse.resize(std::max(thread.lse.size(), static_cast<std::size_t>(output.queries)));
  pass.work.sum(output, thread.partial_lse, thread.lse.data());
  work.lse = thread.lse.data();
  observe_rows(pass, call, item, work);
}

}  // namespace

void open_prompt(Pass& pass, BatchEntry& entry) {
  PromptWork& prompt = entry.prompt;
  prompt.tile_tokens = entry.learns() ? entry.rows.program->tile_tokens() : 0;
  prompt.tiles = prompt.tile_tokens == 0 ? 0 : (entry.rows.rows + prompt.tile_tokens - 1) / prompt.tile_tokens;
  if (prompt.tiles > 0) {
    prompt.sets.resize(static_cast<std::size_t>(pass.shape.layers * pass.shape.kv_heads * prompt.tiles));
  }
  prompt.observe_from = entry.learns() ? entry.rows.program->observe_from(entry.rows.prompt_end)
                                       : std::numeric_limits<std::int64_t>::max();
  if (entry.tokens > prompt.observe_from && entry.rows.state->heat.any()) fade_heat(entry.rows);
  const auto wanted = static_cast<std::size_t>(pass.shape.kv_heads + 1 + prompt.tiles);
  if (prompt.remaining_size < wanted) {
    prompt.remaining = std::make_unique<std::atomic<int>[]>(wanted);
    prompt.remaining_size = wanted;
  }
}

/// Sizes what this layer observes and says how many items and heads are still to come.
void open_prompt_layer(Pass& pass, BatchEntry& entry, int layer) {
  PromptWork& prompt = entry.prompt;
  if (entry.tokens <= prompt.observe_from) return;
  const SequenceState& state = *entry.rows.state;
  const int tile = kernels::prefill_tile_rows(pass.group);
  const std::int64_t skipped = std::max<std::int64_t>(0, prompt.observe_from - entry.rows.position);
  const int items = (entry.rows.rows + tile - 1) / tile - static_cast<int>(skipped / tile);
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  prompt.observed.assign(static_cast<std::size_t>(items * pass.shape.kv_heads) * tokens, 0.0F);
  for (int head = 0; head < pass.shape.kv_heads; ++head) prompt.remaining[head].store(items, std::memory_order_relaxed);
  prompt.remaining[pass.shape.kv_heads].store(pass.shape.kv_heads, std::memory_order_relaxed);
  if (entry.layer(layer).heats) {
    const auto block = static_cast<std::size_t>(state.heat.block());
    prompt.observed_blocks.assign(static_cast<std::size_t>(pass.shape.kv_heads) * ((tokens + block - 1) / block), 0);
  }
}

/// Attend phase.
void add_prompt(Pass& pass, BatchEntry& entry, int index, int layer) {
  PromptWork& prompt = entry.prompt;
  for (int head = 0; head < pass.shape.kv_heads && prompt.tiles > 0; ++head) {
    const HeadOp& op = entry.head(layer, head);
    if (op.reads != HeadOp::Reads::window) continue;
    const plan::Selector& window = *op.window;
    // What was evicted lay between sink and window, in whole pages: a token behind it has a lower slot.
    const std::int64_t gone = entry.tokens - entry.views[static_cast<std::size_t>(head)].slots;
    for (int tile = 0; tile < prompt.tiles; ++tile) {
      TileSet& own = tile_set(pass, entry, layer, head, tile);
      const std::int64_t start = entry.rows.position + static_cast<std::int64_t>(tile) * prompt.tile_tokens;
      const std::int64_t local = plan::window_tokens(window, start);
      own.list.clear();
      own.everything = window.sink + local >= start || start < entry.rows.program->min_context();
      if (own.everything) continue;
      for (std::int32_t i = 0; i < window.sink; ++i) own.list.push_back(i);
      for (std::int64_t i = std::max<std::int64_t>(start - local, window.sink + gone); i < start; ++i) {
        own.list.push_back(static_cast<std::int32_t>(i - gone));
      }
    }
  }
  if (prompt.tiles > 0 && entry.layer(layer).tiles_follow) open_tiles(pass, entry, layer);
  if (entry.ends_prompt) entry.rows.state->low_rank[static_cast<std::size_t>(layer)].reset();
  if (wants_factors(entry, layer)) pass.items.add({Item::Kind::factor, index});
  if (splits_keys(pass, entry)) {
    add_few_rows(pass, entry, index);
  } else {
    add_rows(pass, entry, index);
  }
  for (int head = 0; head < pass.shape.kv_heads && grows_indices(pass, entry, layer); ++head) {
    if (entry.rows.state->indices[entry.rows.state->head(layer, head)] == nullptr) continue;
    pass.items.add({Item::Kind::grow, index, head});
  }
}

bool grows_indices(Pass& pass, const BatchEntry& entry, int layer) {
  if (entry.rows.kind == PassKind::verify) return false;
  if (entry.rows.kind == PassKind::prompt && entry.tokens < entry.rows.prompt_end) return false;
  const SequenceState& state = *entry.rows.state;
  const auto first = state.indices.begin() + static_cast<std::ptrdiff_t>(state.head(layer, 0));
  return std::any_of(first, first + pass.shape.kv_heads, [](const auto& index) { return index != nullptr; });
}

void run_few_rows(Pass& pass, const Call& call, const Split& split) {
  const HeadOutput& output = pass.work.output(split);
  const BatchEntry& entry = pass.entry(output.batch);
  const kernels::KvFormat& format = pass.cache->shape().format;
  const std::span<std::byte> workspace = pass.thread(call.ith).prefill;
  float* const partial = pass.work.partial(output, split.partial);
  kernels::PrefillItem work =
      pass.prompt_item({Item::Kind::prefill, output.batch, output.head, 0, output.rows}, call.q);
  if (verifies_few(entry)) {
    kernels::attend_rows(format,
                         {.head = work.head,
                          .query = work.query,
                          .query_stride = work.query_stride,
                          .group = work.group,
                          .rows = work.rows,
                          .scale = work.scale,
                          .first_slot = work.first_slot,
                          .begin = split.begin,
                          .end = split.end,
                          .partial = partial},
                         workspace);
    return;
  }
  work.begin = split.begin;
  work.end = split.end;
  work.out = partial;
  work.out_stride = static_cast<std::size_t>(pass.group) * static_cast<std::size_t>(pass.shape.head_dim);
  work.lse = work.out + static_cast<std::size_t>(output.rows) * work.out_stride;
  kernels::prefill(format, work, workspace);
}

void finish_few_rows(Pass& pass, const Call& call, const HeadOutput& output) {
  const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
  const std::size_t width = static_cast<std::size_t>(pass.group) * dim;
  auto& combined = pass.thread(call.ith).combined;
  combined.resize(std::max(combined.size(), static_cast<std::size_t>(output.rows) * width));
  pass.work.merge(output, combined.data());
  float* to = call.out + output.query * dim;
  for (int row = 0; row < output.rows; ++row, to += static_cast<std::size_t>(pass.shape.heads) * dim) {
    std::copy_n(combined.data() + static_cast<std::size_t>(row) * width, width, to);
  }
  const BatchEntry& entry = pass.entry(output.batch);
  if (entry.tokens > entry.prompt.observe_from) observe_few_rows(pass, call, output);
}

void run_prompt(Pass& pass, const Call& call, const Item& item) {
  BatchEntry& entry = pass.entry(item.batch);
  const PromptWork& prompt = entry.prompt;
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(item.head)];
  kernels::PrefillItem work = pass.prompt_item(item, call.q);
  work.out = call.out + (work.query - call.q);
  work.out_stride = work.query_stride;
  const HeadOp& op = entry.head(call.layer, item.head);
  if (prompt.tiles > 0 && op.reads != HeadOp::Reads::everything) {
    const int tile = item.begin / prompt.tile_tokens;
    const plan::SlotId slot = op.reads == HeadOp::Reads::set ? op.set : plan::SlotId{call.layer, item.head};
    const TileSet& set = tile_set(pass, entry, slot.layer, slot.head, tile);
    if (!set.everything) {
      work.list = set.list.data();
      work.list_count = static_cast<std::int32_t>(set.list.size());
      work.own_begin = pass.first_slot(entry, view) + tile * prompt.tile_tokens;
    }
  }
  ThreadScratch& thread = pass.thread(call.ith);
  const bool observed = entry.rows.position + item.end > prompt.observe_from;
  const bool chooses = prompt.tiles > 0 && op.select >= 0 && entry.layer(call.layer).tiles_follow;
  if (observed || chooses) {
    const auto floats = static_cast<std::size_t>(work.rows * pass.group);
    if (thread.lse.size() < floats) thread.lse.resize(floats);
    work.lse = thread.lse.data();
  }
  kernels::prefill(pass.cache->shape().format, work, thread.prefill);
  if (chooses) choose_behind_tile(pass, call, item, work);
  if (observed) observe_rows(pass, call, item, work);
}

}  // namespace glimpse::attention
