#include "glimpse/attention/cpu/select.h"

#include <algorithm>

#include "glimpse/attention/cpu/audit.h"
#include "glimpse/attention/cpu/tiles.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

constexpr std::int64_t kSplit = kernels::kSplitTokens;

/// Items that score all keys for one set; returns how many heads score.
int add_scores(Pass& pass, BatchEntry& entry, int index, const SelectOp& select, std::size_t& score_floats) {
  int scored = 0;
  for (int i = 0; i < select.heads; ++i) {
    const int queries = select.queries[static_cast<std::size_t>(i)];
    if (queries == 0) continue;
    const int head = select.first_head + i;
    entry.score_offset[static_cast<std::size_t>(head)] = score_floats;
    score_floats += static_cast<std::size_t>(queries) * pass.score_stride;
    Unit unit{index, head, -1, queries, 0, split_count(entry.tokens)};
    const int number = pass.select_work.add_unit(unit);
    for (int part = 0; part < unit.partials; ++part) {
      const auto begin = static_cast<std::int32_t>(part * kSplit);
      const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(entry.tokens, begin + kSplit));
      pass.select_work.add({Item::Kind::score, number, index, head, begin, end, nullptr, part});
    }
    entry.counters.k_rows += entry.tokens;
    ++scored;
  }
  return scored;
}

void add_decode_selects(Pass& pass, BatchEntry& entry, int index, int layer, std::size_t& score_floats) {
  const SequenceState& state = *entry.rows.state;
  if (state.key_ranks[static_cast<std::size_t>(layer)] > 0 && !state.low_rank[static_cast<std::size_t>(layer)] &&
      state.prompt_tokens > 0) {  // forked from another plan, or dense until now
    pass.select_work.add({Item::Kind::factor, -1, index, 0, 0, 0, nullptr, 0});
  }
  for (const SelectOp& select : entry.layer(layer).selects) {
    if (select.from == SelectOp::From::index) {
      pass.select_work.add({Item::Kind::search, -1, index, select.first_head, 0, 0, nullptr, 0});
    } else if (select.from == SelectOp::From::scores) {
      const int scored = add_scores(pass, entry, index, select, score_floats);
      if (!select.of_layer()) continue;
      pass.layer_remaining[index].store(scored, std::memory_order_relaxed);
      if (scored == 0) pass.select_work.add({Item::Kind::choose, -1, index, 0, 0, 0, nullptr, 0});
    }
  }
}

void publish(PublishedSet& set, std::size_t list, std::int64_t tokens) {
  set.everything = (list == 0 || set.everything) && static_cast<std::int64_t>(set.lists[list].size()) >= tokens;
}

}  // namespace

void build_select(Pass& pass, int layer) {
  pass.select_work.clear();
  std::size_t floats = 0;
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    BatchEntry& entry = pass.batch[b];
    pass.layer_remaining[b].store(0, std::memory_order_relaxed);
    if (entry.failure) continue;
    if (!entry.rows.decodes()) {
      if (entry.prompt.tile_tokens > 0) add_tiles(pass, entry, static_cast<int>(b), layer);
    } else if (!entry.dense) {
      add_decode_selects(pass, entry, static_cast<int>(b), layer, floats);
    }
  }
  if (pass.scores.size() < floats) pass.scores.resize(floats);
  std::size_t sums = 0;  // a log-sum-exp for each query and part; the attending that follows uses the space anew
  for (std::size_t u = 0; u < pass.select_work.unit_count(); ++u) {
    Unit& unit = pass.select_work.unit(static_cast<int>(u));
    unit.first_partial = sums;
    sums += static_cast<std::size_t>(unit.group) * static_cast<std::size_t>(unit.partials);
  }
  if (pass.partials.size() < sums) pass.partials.resize(sums + sums / 4);
  pass.select_work.seal();
}

void run_score(Pass& pass, const Call& call, const Item& item, const Item* next) {
  BatchEntry& entry = pass.entry(item);
  const auto head = static_cast<std::size_t>(item.head);
  const plan::Term& term = entry.rows.program->select(call.layer, item.head).selector->terms.front();
  const Unit& unit = pass.select_work.unit(item.unit);
  kernels::ScoreItem work;
  work.head = &entry.views[head];
  work.query = pass.head_query(entry, call.q, 0, item.head);
  if (!term.query_heads.empty()) {  // only some of the group score
    const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
    auto& queries = pass.thread(call.ith).queries;
    queries.clear();
    for (const int query_head : term.query_heads) {
      if (query_head / pass.group != item.head) continue;
      const float* from = work.query + static_cast<std::size_t>(query_head % pass.group) * dim;
      queries.insert(queries.end(), from, from + dim);
    }
    work.query = queries.data();
  }
  work.group = unit.group;
  work.scale = pass.scale;
  work.begin = item.begin;
  work.end = item.end;
  work.scores = pass.scores.data() + entry.score_offset[head];
  work.score_stride = pass.score_stride;
  kernels::ScoreItem following;
  if (next != nullptr && next->kind == Item::Kind::score) {
    following.head = &pass.batch[static_cast<std::size_t>(next->batch)].views[static_cast<std::size_t>(next->head)];
    following.begin = next->begin;
    following.end = next->end;
    work.next = &following;
  }
  kernels::score(pass.cache->shape().format, work);
  // Part by part while the scores are near, and on every thread; scores before softmax need none.
  const bool sums = term.source == plan::Source::probability;
  float* const parts = pass.partials.data() + unit.first_partial;
  for (int j = 0; sums && j < unit.group; ++j) {
    const float* row = work.scores + static_cast<std::size_t>(j) * pass.score_stride;
    parts[j * unit.partials + item.partial] =
        kernels::log_sum_exp({row + item.begin, static_cast<std::size_t>(item.end - item.begin)});
  }
  if (!pass.select_work.finish(item.unit, 1)) return;
  for (int j = 0; sums && j < unit.group; ++j) {
    entry.lse[head * static_cast<std::size_t>(pass.group) + static_cast<std::size_t>(j)] =
        kernels::log_sum_exp({parts + j * unit.partials, static_cast<std::size_t>(unit.partials)});
  }
  select_head(pass, call, item.batch, item.head);
}

void run_search(Pass& pass, const Call& call, const Item& item) {
  BatchEntry& entry = pass.entry(item);
  SequenceState& state = *entry.rows.state;
  const SelectOp& select = entry.rows.program->select(call.layer, item.head);
  kv::KeyIndex& index = *state.indices[state.head(call.layer, item.head)];
  const kv::KeySource source{&entry.views[static_cast<std::size_t>(item.head)], pass.cache->shape().format,
                             state.boundaries, state.prompt_tokens};
  {
    const bool first = index.covered() == 0;  // built late; what a later step adds is that step's work
    const Stopwatch watch(first ? &entry.index_build_s[static_cast<std::size_t>(item.head)] : nullptr);
    index.extend(source, entry.rows.kind == PassKind::draft ? entry.rows.committed : entry.tokens);
  }
  PublishedSet& set = state.sets.at({call.layer, item.head});
  const auto lists = static_cast<std::size_t>(select.lists);
  for (std::size_t j = 0; j < lists; ++j) {
    kv::IndexQuery query;
    query.queries = pass.head_query(entry, call.q, 0, item.head) + j * static_cast<std::size_t>(pass.shape.head_dim);
    query.group = lists > 1 ? 1 : pass.group;
    query.scale = pass.scale;
    query.tokens = entry.tokens;
    query.budget = plan::budget_tokens(select.selector->budget, entry.tokens);
    entry.index_bytes[static_cast<std::size_t>(item.head)] +=
        index.search(query, pass.thread(call.ith).index, set.lists[j]);
    publish(set, j, entry.tokens);
  }
}

/// The prompt's last chunk builds what searches will read; a correction mends it.
void grow_index(Pass& pass, const Item& item, int layer) {
  BatchEntry& entry = pass.batch[static_cast<std::size_t>(item.batch)];
  SequenceState& state = *entry.rows.state;
  std::unique_ptr<kv::KeyIndex>& index = state.indices[state.head(layer, item.head)];
  const bool open = entry.ends_prompt || state.prompt_tokens == 0;
  const kv::KeySource source{&entry.views[static_cast<std::size_t>(item.head)], pass.cache->shape().format,
                             state.boundaries, open ? entry.tokens : state.prompt_tokens};
  const Stopwatch watch(&entry.index_build_s[static_cast<std::size_t>(item.head)]);
  if (entry.rows.kind == PassKind::correct) {
    index->refresh(source, entry.rows.position, entry.tokens);
    return;
  }
  const plan::Selector& how = *entry.rows.program->select(layer, item.head).selector;
  // What it holds took less of the text for prompt.
  if (entry.ends_prompt && depends_on_prompt(how)) index = kv::make_index(how, pass.shape.head_dim);
  index->extend(source, entry.tokens);
}

void select_head(Pass& pass, const Call& call, int batch_index, int head) {
  BatchEntry& entry = pass.batch[static_cast<std::size_t>(batch_index)];
  const SelectOp& select = entry.rows.program->select(call.layer, head);
  const plan::Selector& how = *select.selector;
  if (select.of_layer()) {  // the last head to be scored selects for all
    if (pass.layer_remaining[batch_index].fetch_sub(1, std::memory_order_acq_rel) == 1)
      select_layer(pass, call, batch_index);
    return;
  }
  SelectionScratch& scratch = pass.thread(call.ith).selection;
  const std::span<float> pooled(scratch.pooled.data(), static_cast<std::size_t>(entry.tokens));
  const float* head_scores = pass.scores.data() + entry.score_offset[static_cast<std::size_t>(head)];
  const float* lse = entry.lse.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(pass.group);
  PublishedSet& set = entry.rows.state->sets.at({call.layer, head});
  for (int j = 0; j < select.lists; ++j) {
    const auto offset = static_cast<std::size_t>(j);
    pool_group(
        how.terms.front(),
        {head_scores + offset * pass.score_stride, pass.score_stride, lse + offset, select.lists > 1 ? 1 : pass.group},
        pooled);
    choose(how, pooled, scratch, set.lists[offset]);
    publish(set, offset, entry.tokens);
  }
  if (!select.weighs) return;
  note_coverage(entry, {call.layer, head}, {head_scores, pass.score_stride, lse, pass.group}, set,
                pass.thread(call.ith));
}

void select_layer(Pass& pass, const Call& call, int batch_index) {
  BatchEntry& entry = pass.batch[static_cast<std::size_t>(batch_index)];
  SequenceState& state = *entry.rows.state;
  ThreadScratch& thread = pass.thread(call.ith);
  const SelectOp& select = entry.rows.program->select(call.layer, 0);
  const plan::Selector& how = *select.selector;
  const plan::Term& first = how.terms.front();
  const auto kv_heads = static_cast<std::size_t>(pass.shape.kv_heads);
  for (std::size_t head = 0; head < kv_heads; ++head) {
    thread.heads[head] = {pass.scores.data() + entry.score_offset[head], pass.score_stride,
                          entry.lse.data() + head * static_cast<std::size_t>(pass.group), select.queries[head]};
  }
  const std::span<const HeadScores> heads(thread.heads);
  PublishedSet& set = state.sets.at({call.layer, 0});
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const std::span<float> pooled(thread.selection.pooled.data(), tokens);
  if (first.heads == plan::HeadPooling::rank_merge) {
    choose_by_rank(how, heads, tokens, thread.selection, set.lists[0]);
  } else if (by_parts(how) || select.joins.layer >= 0) {
    Parts parts;
    parts.tokens = tokens;
    if (first.source != plan::Source::heat) parts.heads = heads;
    if (select.joins.layer >= 0) parts.inherited = state.sets.at(select.joins).chosen;
    if (state.has_heat()) {
      auto& heat = state.heat(call.layer);
      const auto block = static_cast<std::size_t>(state.heat_block());
      if (heat.size() < (tokens + block - 1) / block) heat.resize((tokens + block - 1) / block, 0.0F);
      parts.heat = heat;
    }
    choose_parts(how, parts, thread.selection, set);
  } else {
    pool_layer(first, heads, thread.selection, pooled);
    choose(how, pooled, thread.selection, set.lists[0]);
  }
  publish(set, 0, entry.tokens);
  if (!select.weighs) return;
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    const HeadScores& scored = heads[static_cast<std::size_t>(head)];
    if (scored.group > 0) note_coverage(entry, {call.layer, head}, scored, set, thread);
  }
}

}  // namespace glimpse::attention
