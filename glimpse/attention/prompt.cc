// Rows of a prompt: dense tiles, tiles that read a set, and what a plan observes of the prompt's attention.
#include <algorithm>
#include <cmath>
#include <limits>

#include "glimpse/attention/runner_state.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;
using plan::SetPer;

/// Keys of one item of few rows. Fixed, so that results do not depend on threads.
constexpr std::int32_t kKeyRange = 2048;
static_assert(kKeyRange % kernels::kSplitTokens == 0);

/// Stamps begin with the first generated token.
bool observes(plan::RetentionRule rule) {
  return plan::forgets_by_statistic(rule) && rule != plan::RetentionRule::stamps;
}

}  // namespace

void Runner::State::open_prompt(BatchEntry& entry) {
  const plan::Plan& plan = *entry.rows.plan;
  PromptWork& prompt = entry.prompt;
  prompt.tile_tokens = plan.prefill.sparse && entry.learns() ? plan.prefill.tile_tokens(group) : 0;
  prompt.tiles = prompt.tile_tokens == 0 ? 0 : (entry.rows.rows + prompt.tile_tokens - 1) / prompt.tile_tokens;
  if (prompt.tiles > 0) {
    prompt.sets.resize(static_cast<std::size_t>(shape.layers * shape.kv_heads * prompt.tiles));
  }
  prompt.observe_from = std::numeric_limits<std::int64_t>::max();
  if (entry.learns() && plan.prefill.observe == plan::Observe::all) prompt.observe_from = 0;
  if (entry.learns() && plan.prefill.observe == plan::Observe::last_rows) {
    prompt.observe_from = entry.rows.prompt_end - plan.prefill.observe_rows;
  }
  if (entry.tokens > prompt.observe_from) fade_heat(entry);
  const auto wanted = static_cast<std::size_t>(shape.kv_heads + 1 + prompt.tiles);
  if (prompt.remaining_size < wanted) {
    prompt.remaining = std::make_unique<std::atomic<int>[]>(wanted);
    prompt.remaining_size = wanted;
  }
}

/// The rows that are observed are steps of the heat: what was there fades by as many. A seed that begins before
/// anything was decoded is the whole of it, so that pieces of a prompt leave what the prompt leaves.
void Runner::State::fade_heat(BatchEntry& entry) const {
  SequenceState& state = *entry.rows.state;
  if (!state.has_heat()) return;
  const std::int64_t first = std::max(entry.rows.position, entry.prompt.observe_from);
  const bool begins = entry.rows.position <= entry.prompt.observe_from;
  const double left = std::pow(entry.rows.plan->heat.decay, static_cast<double>(entry.tokens - first));
  state.scale_heat(begins && state.decode_steps == 0 ? 0.0 : left);
}

/// Sizes what this layer observes and says how many items and heads are still to come.
void Runner::State::open_prompt_layer(BatchEntry& entry, int layer) {
  PromptWork& prompt = entry.prompt;
  if (entry.tokens <= prompt.observe_from) return;
  const SequenceState& state = *entry.rows.state;
  const int tile = kernels::prefill_tile_rows(group);
  const std::int64_t skipped = std::max<std::int64_t>(0, prompt.observe_from - entry.rows.position);
  const int items = (entry.rows.rows + tile - 1) / tile - static_cast<int>(skipped / tile);
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  prompt.observed.assign(static_cast<std::size_t>(items * shape.kv_heads) * tokens, 0.0F);
  for (int head = 0; head < shape.kv_heads; ++head) prompt.remaining[head].store(items, std::memory_order_relaxed);
  prompt.remaining[shape.kv_heads].store(shape.kv_heads, std::memory_order_relaxed);
  if (state.has_heat() && layer >= entry.rows.plan->heat.first_layer) {
    const auto block = static_cast<std::size_t>(state.heat_block());
    prompt.observed_blocks.assign(static_cast<std::size_t>(shape.kv_heads) * ((tokens + block - 1) / block), 0);
  }
}

/// Attend phase.
void Runner::State::add_prompt(BatchEntry& entry, int index, int layer) {
  PromptWork& prompt = entry.prompt;
  for (int head = 0; head < shape.kv_heads && prompt.tiles > 0; ++head) {
    const plan::Role& head_role = role(entry, layer, head);
    if (head_role.kind != RoleKind::stream) continue;
    const plan::Selector& window = selector(entry, head_role);
    // What was evicted lay between sink and window, in whole pages: a token behind it has a lower slot.
    const std::int64_t gone = entry.tokens - entry.views[static_cast<std::size_t>(head)].slots;
    for (int tile = 0; tile < prompt.tiles; ++tile) {
      TileSet& own = tile_set(entry, layer, head, tile);
      const std::int64_t start = entry.rows.position + static_cast<std::int64_t>(tile) * prompt.tile_tokens;
      const std::int64_t local = plan::window_tokens(window, start);
      own.list.clear();
      own.everything = window.sink + local >= start || start < entry.rows.plan->min_context;
      if (own.everything) continue;
      for (std::int32_t i = 0; i < window.sink; ++i) own.list.push_back(i);
      for (std::int64_t i = std::max<std::int64_t>(start - local, window.sink + gone); i < start; ++i) {
        own.list.push_back(static_cast<std::int32_t>(i - gone));
      }
    }
  }
  if (prompt.tiles > 0 && tiles_follow(entry, layer)) open_tiles(entry, layer);
  if (entry.ends_prompt) entry.rows.state->low_rank[static_cast<std::size_t>(layer)].reset();
  if (wants_factors(entry, layer)) attend_work.add({Item::Kind::factor, -1, index, 0, 0, 0, nullptr, 0});
  for (int head = 0; head < shape.kv_heads && entry.rows.kind == PassKind::verify; ++head) {
    const std::int64_t live = cache->live_tokens(entry.rows.sequence, layer, head);
    entry.counters.k_rows += live;
    entry.counters.v_rows += live;
  }
  if (splits_keys(entry)) {
    add_few_rows(entry, index);
  } else {
    add_rows(entry, index);
  }
  for (int head = 0; head < shape.kv_heads && grows_indices(entry, layer); ++head) {
    if (entry.rows.state->indices[entry.rows.state->head(layer, head)] == nullptr) continue;
    attend_work.add({Item::Kind::grow, -1, index, head, 0, 0, nullptr, 0});
  }
}

bool Runner::State::grows_indices(const BatchEntry& entry, int layer) const {
  if (entry.rows.kind == PassKind::verify) return false;
  if (entry.rows.kind == PassKind::prompt && entry.tokens < entry.rows.prompt_end) return false;
  const SequenceState& state = *entry.rows.state;
  const auto first = state.indices.begin() + static_cast<std::ptrdiff_t>(state.head(layer, 0));
  return std::any_of(first, first + shape.kv_heads, [](const auto& index) { return index != nullptr; });
}

void Runner::State::add_rows(const BatchEntry& entry, int index) {
  // Later tiles see more keys: the longest first, so that no thread ends alone.
  const int rows = kernels::prefill_tile_rows(group);
  const int span = entry.prompt.tiles > 0 ? entry.prompt.tile_tokens : entry.rows.rows;
  for (int first = (entry.rows.rows - 1) / span * span; first >= 0; first -= span) {
    const int last = std::min(entry.rows.rows, first + span);
    for (int begin = first + (last - first - 1) / rows * rows; begin >= first; begin -= rows) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        attend_work.add({Item::Kind::prefill, -1, index, head, begin, std::min(last, begin + rows), nullptr, 0});
      }
    }
  }
}

/// Few rows against a long context: as items over rows they would leave threads idle. Whether a plan observes them is
/// no matter: what a prompt leaves in the cache depends on its pieces alone.
bool Runner::State::splits_keys(const BatchEntry& entry) const {
  if (verifies_few(entry)) return true;
  return entry.prompt.tiles == 0 && entry.rows.rows <= kernels::prefill_tile_rows(group) && entry.tokens > kKeyRange;
}

/// Verified rows say what decoding them one by one would: as many as the products with weights do that for.
bool Runner::State::verifies_few(const BatchEntry& entry) {
  return entry.rows.kind == PassKind::verify && entry.rows.rows <= kernels::kFewRows;
}

void Runner::State::add_few_rows(const BatchEntry& entry, int index) {
  const bool verify = verifies_few(entry);
  const std::int32_t part = verify ? kernels::kSplitTokens : kKeyRange;
  const int first = static_cast<int>(attend_work.unit_count());
  std::int32_t most = 0;
  for (int head = 0; head < shape.kv_heads; ++head) {
    const std::int32_t slots = entry.views[static_cast<std::size_t>(head)].slots;
    Unit unit{index, head, -1, group * entry.rows.rows, 0, (slots + part - 1) / part};
    unit.prompt_rows = entry.rows.rows;
    unit.entries = slots;
    attend_work.add_unit(unit);
    most = std::max(most, slots);
  }
  for (std::int32_t at = 0; at < most; at += kKeyRange) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const std::int32_t slots = attend_work.unit(first + head).entries;
      if (at >= slots) continue;
      attend_work.add({verify ? Item::Kind::verify : Item::Kind::range, first + head, index, head, at,
                       std::min(slots, at + kKeyRange), nullptr, at / part});
    }
  }
}

void Runner::State::run_range(const Item& item, const float* q, int ith) {
  const Unit& unit = attend_work.unit(item.unit);
  kernels::PrefillItem work =
      prompt_item({Item::Kind::prefill, -1, item.batch, item.head, 0, unit.prompt_rows, nullptr, 0}, q);
  work.begin = item.begin;
  work.end = item.end;
  work.out = partials.data() + unit.first_partial +
             static_cast<std::size_t>(item.partial) * kernels::partial_floats(unit.group, shape.head_dim);
  work.out_stride = static_cast<std::size_t>(group) * static_cast<std::size_t>(shape.head_dim);
  work.lse = work.out + static_cast<std::size_t>(unit.prompt_rows) * work.out_stride;
  kernels::prefill(cache->shape().format, work, threads[static_cast<std::size_t>(ith)].prefill);
}

void Runner::State::run_verify(const Item& item, const float* q, int ith) {
  const Unit& unit = attend_work.unit(item.unit);
  const BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(item.head)];
  kernels::AttendRowsItem work;
  work.head = &view;
  work.query = head_query(entry, q, 0, item.head);
  work.query_stride = static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.head_dim);
  work.group = group;
  work.rows = unit.prompt_rows;
  work.scale = scale;
  work.first_slot = first_slot(entry, view);
  work.begin = item.begin;
  work.end = item.end;
  work.partial = partials.data() + unit.first_partial +
                 static_cast<std::size_t>(item.partial) * kernels::partial_floats(unit.group, shape.head_dim);
  kernels::attend_rows(cache->shape().format, work, threads[static_cast<std::size_t>(ith)].prefill);
}

void Runner::State::combine_few_rows(const Unit& unit, int layer, const float* q, float* out, int ith) {
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t width = static_cast<std::size_t>(group) * dim;
  auto& combined = threads[static_cast<std::size_t>(ith)].combined;
  if (combined.size() < static_cast<std::size_t>(unit.prompt_rows) * width) {
    combined.resize(static_cast<std::size_t>(unit.prompt_rows) * width);
  }
  kernels::combine(partials.data() + unit.first_partial, unit.partials, unit.group, shape.head_dim, combined.data());
  const BatchEntry& entry = batch[static_cast<std::size_t>(unit.batch)];
  const auto row = static_cast<std::size_t>(entry.rows.first_row);
  float* to = out + (row * static_cast<std::size_t>(shape.heads) +
                     static_cast<std::size_t>(unit.head) * static_cast<std::size_t>(group)) *
                        dim;
  for (int r = 0; r < unit.prompt_rows; ++r, to += static_cast<std::size_t>(shape.heads) * dim) {
    std::copy_n(combined.data() + static_cast<std::size_t>(r) * width, width, to);
  }
  if (entry.tokens > entry.prompt.observe_from) observe_few_rows(unit, layer, q, ith);
}

/// What the rows of a unit saw is known from its parts.
void Runner::State::observe_few_rows(const Unit& unit, int layer, const float* q, int ith) {
  const Item item{Item::Kind::prefill, -1, unit.batch, unit.head, 0, unit.prompt_rows, nullptr, 0};
  kernels::PrefillItem work = prompt_item(item, q);
  const auto queries = static_cast<std::size_t>(unit.group);
  const auto parts = static_cast<std::size_t>(unit.partials);
  auto& lse = threads[static_cast<std::size_t>(ith)].lse;
  if (lse.size() < queries + parts) lse.resize(queries + parts);
  const std::span<float> of_query(lse.data() + queries, parts);
  for (std::size_t j = 0; j < queries; ++j) {
    const float* from = partials.data() + unit.first_partial + queries * static_cast<std::size_t>(shape.head_dim) + j;
    for (float& part : of_query) {
      part = *from;
      from += kernels::partial_floats(unit.group, shape.head_dim);
    }
    lse[j] = kernels::log_sum_exp(of_query);
  }
  work.lse = lse.data();
  observe_rows(item, layer, work, ith);
}

/// The rows of a prompt item before everything they see; `out` and `lse` are still to be said.
kernels::PrefillItem Runner::State::prompt_item(const Item& item, const float* q) const {
  const BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(item.head)];
  kernels::PrefillItem work;
  work.head = &view;
  work.query = head_query(entry, q, item.begin, item.head);
  work.query_stride = static_cast<std::size_t>(shape.heads) * static_cast<std::size_t>(shape.head_dim);
  work.group = group;
  work.scale = scale;
  work.first_slot = first_slot(entry, view) + item.begin;
  work.rows = item.end - item.begin;
  return work;
}

void Runner::State::run_prompt(const Item& item, int layer, const float* q, float* out, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const PromptWork& prompt = entry.prompt;
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(item.head)];
  kernels::PrefillItem work = prompt_item(item, q);
  work.out = out + (work.query - q);
  work.out_stride = work.query_stride;
  const plan::Role& head_role = role(entry, layer, item.head);
  const bool reads_set = prompt.tiles > 0 && (head_role.kind == RoleKind::stream || head_role.kind == RoleKind::reuse ||
                                              (head_role.kind == RoleKind::select && head_role.attends_set));
  if (reads_set) {
    const int tile = item.begin / prompt.tile_tokens;
    plan::SlotId slot{layer, item.head};
    if (head_role.kind == RoleKind::reuse) slot = head_role.reads;
    if (head_role.kind == RoleKind::select && selector(entry, head_role).per == SetPer::layer) slot.head = 0;
    const TileSet& set = tile_set(entry, slot.layer, slot.head, tile);
    if (!set.everything) {
      work.list = set.list.data();
      work.list_count = static_cast<std::int32_t>(set.list.size());
      work.own_begin = first_slot(entry, view) + tile * prompt.tile_tokens;
    }
  }
  ThreadScratch& thread = threads[static_cast<std::size_t>(ith)];
  const bool observed = entry.rows.position + item.end > prompt.observe_from;
  const bool chooses = prompt.tiles > 0 && head_role.kind == RoleKind::select && tiles_follow(entry, layer);
  if (observed || chooses) {
    const auto floats = static_cast<std::size_t>(work.rows * group);
    if (thread.lse.size() < floats) thread.lse.resize(floats);
    work.lse = thread.lse.data();
  }
  kernels::prefill(cache->shape().format, work, thread.prefill);
  if (chooses) choose_behind_tile(item, layer, work, ith);
  if (observed) observe_rows(item, layer, work, ith);
}

/// Adds up the probabilities that the item's observed rows gave each key, by itself; the last item of a head takes
/// all of them in order.
void Runner::State::observe_rows(const Item& item, int layer, kernels::PrefillItem work, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  PromptWork& prompt = entry.prompt;
  const plan::Retention* kept = retention(entry, role(entry, layer, item.head));
  const bool heats = entry.rows.state->has_heat() && layer >= entry.rows.plan->heat.first_layer;
  if (heats || (kept != nullptr && observes(kept->rule))) {
    const auto skip =
        static_cast<int>(std::max<std::int64_t>(0, prompt.observe_from - (entry.rows.position + item.begin)));
    work.query += static_cast<std::size_t>(skip) * work.query_stride;
    work.lse += skip * group;
    work.first_slot += skip;
    work.rows -= skip;
    auto& weights = threads[static_cast<std::size_t>(ith)].weights;
    weights.assign(static_cast<std::size_t>(work.rows), 1.0F);
    for (int row = 0; heats && row < work.rows; ++row) {  // each row is a step of the heat
      const auto age = static_cast<double>(entry.rows.rows - 1 - (item.begin + skip + row));
      weights[static_cast<std::size_t>(row)] = static_cast<float>(std::pow(entry.rows.plan->heat.decay, age));
    }
    const int rows = kernels::prefill_tile_rows(group);
    const std::int64_t unseen = std::max<std::int64_t>(0, prompt.observe_from - entry.rows.position);
    const auto number = static_cast<std::size_t>(item.begin / rows - static_cast<int>(unseen / rows));
    kernels::ColumnSumsItem columns;
    columns.tile = work;
    columns.weights = weights.data();
    columns.end = work.head->slots;
    columns.sums = prompt.observed.data() +
                   (number * static_cast<std::size_t>(shape.kv_heads) + static_cast<std::size_t>(item.head)) *
                       static_cast<std::size_t>(entry.tokens);
    kernels::prefill_column_sums(cache->shape().format, columns, threads[static_cast<std::size_t>(ith)].prefill);
  }
  if (prompt.remaining[item.head].fetch_sub(1, std::memory_order_acq_rel) == 1) take_observed(entry, layer, item.head);
}

void Runner::State::take_observed(BatchEntry& entry, int layer, int head) {
  PromptWork& prompt = entry.prompt;
  SequenceState& state = *entry.rows.state;
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  const std::size_t items = prompt.observed.size() / (kv_heads * tokens);
  // Sums are by slot, what is kept is by position: a head that has forgotten tokens has fewer slots.
  const kernels::HeadView& view = entry.views[static_cast<std::size_t>(head)];
  const auto for_each_sum = [&](std::size_t item, auto&& add) {
    const float* sums = prompt.observed.data() + (item * kv_heads + static_cast<std::size_t>(head)) * tokens;
    for (std::int32_t slot = 0; slot < view.slots; ++slot) {
      const std::int32_t position = view.positions == nullptr ? slot : view.positions[slot];
      if (position >= 0) add(static_cast<std::size_t>(position), sums[slot]);
    }
  };
  const plan::Retention* kept = retention(entry, role(entry, layer, head));
  if (kept != nullptr && observes(kept->rule)) {
    const bool last = kept->rule == plan::RetentionRule::last_probability;
    const float share = last ? 1.0F / static_cast<float>(group) : 1.0F;  // TOVA: mean; H2O: summed over the group
    auto& statistic = state.statistics[state.head(layer, head)];
    statistic.resize(tokens, 0.0F);
    if (last) std::fill(statistic.begin(), statistic.end(), 0.0F);
    for (std::size_t item = 0; item < items; ++item) {
      for_each_sum(item, [&](std::size_t position, float sum) { statistic[position] += share * sum; });
    }
  }
  const plan::Heat& how = entry.rows.plan->heat;
  const bool heats = state.has_heat() && layer >= how.first_layer;
  const auto block = static_cast<std::size_t>(state.heat_block());
  const std::size_t blocks = (tokens + block - 1) / block;
  for (std::size_t item = 0; heats && item < items; ++item) {
    double* to = prompt.observed_blocks.data() + static_cast<std::size_t>(head) * blocks;
    for_each_sum(item, [&](std::size_t position, float sum) { to[position / block] += static_cast<double>(sum); });
  }
  if (prompt.remaining[shape.kv_heads].fetch_sub(1, std::memory_order_acq_rel) != 1 || !heats) return;
  // The last head of the layer: the mean over layers and query heads grows layer by layer.
  const int layers = how.per_layer ? 1 : shape.layers - how.first_layer;
  const double share = 1.0 / (static_cast<double>(layers) * shape.heads);
  auto& heat = state.heat(layer);
  heat.resize(std::max(heat.size(), blocks), 0.0F);
  for (std::size_t b = 0; b < blocks; ++b) {
    double sum = 0;
    for (std::size_t h = 0; h < kv_heads; ++h) sum += prompt.observed_blocks[h * blocks + b];
    heat[b] += static_cast<float>(sum * share);
  }
}

}  // namespace glimpse::attention
