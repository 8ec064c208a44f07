// What happens before a layer attends: scoring for heads that attend to their own set, and searches of indices.
#include <algorithm>

#include "glimpse/attention/runner_state.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

using plan::RoleKind;
using plan::SetPer;

constexpr std::int64_t kSplit = kernels::kSplitTokens;

}  // namespace

void Runner::State::build_select(int layer) {
  select_work.clear();
  std::size_t floats = 0;
  for (std::size_t b = 0; b < batch_size; ++b) {
    BatchEntry& entry = batch[b];
    layer_remaining[b].store(0, std::memory_order_relaxed);
    if (entry.failure) continue;
    if (!entry.rows.decodes()) {
      if (entry.prompt.tile_tokens > 0) add_tiles(entry, static_cast<int>(b), layer);
    } else if (!entry.dense) {
      add_decode_selects(entry, static_cast<int>(b), layer, floats);
    }
  }
  if (scores.size() < floats) scores.resize(floats);
  std::size_t sums = 0;  // a log-sum-exp for each query and part; the attending that follows uses the space anew
  for (std::size_t u = 0; u < select_work.unit_count(); ++u) {
    Unit& unit = select_work.unit(static_cast<int>(u));
    unit.first_partial = sums;
    sums += static_cast<std::size_t>(unit.group) * static_cast<std::size_t>(unit.partials);
  }
  if (partials.size() < sums) partials.resize(sums + sums / 4);
  select_work.seal();
}

void Runner::State::add_decode_selects(BatchEntry& entry, int index, int layer, std::size_t& score_floats) {
  bool for_layer = false;
  int scored = 0;
  const SequenceState& state = *entry.rows.state;
  if (state.key_ranks[static_cast<std::size_t>(layer)] > 0 && !state.low_rank[static_cast<std::size_t>(layer)] &&
      state.prompt_tokens > 0) {  // forked from another plan, or dense until now
    select_work.add({Item::Kind::factor, -1, index, 0, 0, 0, nullptr, 0});
  }
  for (int head = 0; head < shape.kv_heads; ++head) {
    const plan::Role& head_role = role(entry, layer, head);
    if (head_role.kind != RoleKind::select) continue;
    const plan::Selector& how = selector(entry, head_role);
    const plan::Term& first = how.terms.front();
    if (plan::is_index(first.source)) {
      select_work.add({Item::Kind::search, -1, index, head, 0, 0, nullptr, 0});
      continue;
    }
    if (!head_role.attends_set) continue;
    for_layer |= how.per == SetPer::layer;
    const int queries = scoring_queries(first, head, group);
    if (queries == 0) continue;
    entry.score_offset[static_cast<std::size_t>(head)] = score_floats;
    score_floats += static_cast<std::size_t>(queries) * score_stride;
    Unit unit{index, head, -1, queries, 0, split_count(entry.tokens)};
    const int number = select_work.add_unit(unit);
    for (int part = 0; part < unit.partials; ++part) {
      const auto begin = static_cast<std::int32_t>(part * kSplit);
      const auto end = static_cast<std::int32_t>(std::min<std::int64_t>(entry.tokens, begin + kSplit));
      select_work.add({Item::Kind::score, number, index, head, begin, end, nullptr, part});
    }
    entry.counters.k_rows += entry.tokens;
    ++scored;
  }
  layer_remaining[index].store(scored, std::memory_order_relaxed);
  if (for_layer && scored == 0) select_work.add({Item::Kind::choose, -1, index, 0, 0, 0, nullptr, 0});
}

void Runner::State::run_score(const Item& item, const Item* next, int layer, const float* q, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  const auto head = static_cast<std::size_t>(item.head);
  const plan::Term& term = selector(entry, role(entry, layer, item.head)).terms.front();
  const Unit& unit = select_work.unit(item.unit);
  kernels::ScoreItem work;
  work.head = &entry.views[head];
  work.query = head_query(entry, q, 0, item.head);
  if (!term.query_heads.empty()) {  // only some of the group score
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    auto& queries = threads[static_cast<std::size_t>(ith)].queries;
    queries.clear();
    for (const int query_head : term.query_heads) {
      if (query_head / group != item.head) continue;
      const float* from = work.query + static_cast<std::size_t>(query_head % group) * dim;
      queries.insert(queries.end(), from, from + dim);
    }
    work.query = queries.data();
  }
  work.group = unit.group;
  work.scale = scale;
  work.begin = item.begin;
  work.end = item.end;
  work.scores = scores.data() + entry.score_offset[head];
  work.score_stride = score_stride;
  kernels::ScoreItem following;
  if (next != nullptr && next->kind == Item::Kind::score) {
    following.head = &batch[static_cast<std::size_t>(next->batch)].views[static_cast<std::size_t>(next->head)];
    following.begin = next->begin;
    following.end = next->end;
    work.next = &following;
  }
  kernels::score(cache->shape().format, work);
  // Part by part while the scores are near, and on every thread; scores before softmax need none.
  const bool sums = term.source == plan::Source::probability;
  float* const parts = partials.data() + unit.first_partial;
  for (int j = 0; sums && j < unit.group; ++j) {
    const float* row = work.scores + static_cast<std::size_t>(j) * score_stride;
    parts[j * unit.partials + item.partial] =
        kernels::log_sum_exp({row + item.begin, static_cast<std::size_t>(item.end - item.begin)});
  }
  if (!select_work.finish(item.unit, 1)) return;
  for (int j = 0; sums && j < unit.group; ++j) {
    entry.lse[head * static_cast<std::size_t>(group) + static_cast<std::size_t>(j)] =
        kernels::log_sum_exp({parts + j * unit.partials, static_cast<std::size_t>(unit.partials)});
  }
  select_head(layer, item.batch, item.head, ith);
}

void Runner::State::run_search(const Item& item, int layer, const float* q, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  SequenceState& state = *entry.rows.state;
  const plan::Selector& how = selector(entry, role(entry, layer, item.head));
  kv::KeyIndex& index = *state.indices[state.head(layer, item.head)];
  const kv::KeySource source{&entry.views[static_cast<std::size_t>(item.head)], cache->shape().format, state.boundaries,
                             state.prompt_tokens};
  {
    const bool first = index.covered() == 0;  // built late; what a later step adds is that step's work
    const Stopwatch watch(first ? &entry.index_build_s[static_cast<std::size_t>(item.head)] : nullptr);
    index.extend(source, entry.rows.kind == PassKind::draft ? entry.rows.committed : entry.tokens);
  }
  PublishedSet& set = state.sets.at({layer, item.head});
  const std::size_t lists = how.per == SetPer::query_head ? static_cast<std::size_t>(group) : 1;
  for (std::size_t j = 0; j < lists; ++j) {
    kv::IndexQuery query;
    query.queries = head_query(entry, q, 0, item.head) + j * static_cast<std::size_t>(shape.head_dim);
    query.group = lists > 1 ? 1 : group;
    query.scale = scale;
    query.tokens = entry.tokens;
    query.budget = plan::budget_tokens(how.budget, entry.tokens);
    entry.index_bytes[static_cast<std::size_t>(item.head)] +=
        index.search(query, threads[static_cast<std::size_t>(ith)].index, set.lists[j]);
    publish(set, j, entry.tokens);
  }
}

/// The prompt's last chunk builds what searches will read; a correction mends it.
void Runner::State::grow_index(const Item& item, int layer) {
  BatchEntry& entry = batch[static_cast<std::size_t>(item.batch)];
  SequenceState& state = *entry.rows.state;
  std::unique_ptr<kv::KeyIndex>& index = state.indices[state.head(layer, item.head)];
  const bool open = entry.ends_prompt || state.prompt_tokens == 0;
  const kv::KeySource source{&entry.views[static_cast<std::size_t>(item.head)], cache->shape().format, state.boundaries,
                             open ? entry.tokens : state.prompt_tokens};
  const Stopwatch watch(&entry.index_build_s[static_cast<std::size_t>(item.head)]);
  if (entry.rows.kind == PassKind::correct) {
    index->refresh(source, entry.rows.position, entry.tokens);
    return;
  }
  const plan::Selector& how = selector(entry, role(entry, layer, item.head));
  // What it holds took less of the text for prompt.
  if (entry.ends_prompt && depends_on_prompt(how)) index = kv::make_index(how, shape.head_dim);
  index->extend(source, entry.tokens);
}

void Runner::State::publish(PublishedSet& set, std::size_t list, std::int64_t tokens) {
  set.everything = (list == 0 || set.everything) && static_cast<std::int64_t>(set.lists[list].size()) >= tokens;
}

void Runner::State::select_head(int layer, int batch_index, int head, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(batch_index)];
  const plan::Role& head_role = role(entry, layer, head);
  const plan::Selector& how = selector(entry, head_role);
  if (how.per == SetPer::layer) {  // the last head to be scored selects for all
    if (layer_remaining[batch_index].fetch_sub(1, std::memory_order_acq_rel) == 1)
      select_layer(layer, batch_index, ith);
    return;
  }
  SelectionScratch& scratch = threads[static_cast<std::size_t>(ith)].selection;
  const std::span<float> pooled(scratch.pooled.data(), static_cast<std::size_t>(entry.tokens));
  const float* head_scores = scores.data() + entry.score_offset[static_cast<std::size_t>(head)];
  const float* lse = entry.lse.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(group);
  PublishedSet& set = entry.rows.state->sets.at({layer, head});
  const int lists = how.per == SetPer::query_head ? group : 1;
  for (int j = 0; j < lists; ++j) {
    const auto offset = static_cast<std::size_t>(j);
    pool_group(how.terms.front(),
               {head_scores + offset * score_stride, score_stride, lse + offset, lists > 1 ? 1 : group}, pooled);
    choose(how, pooled, scratch, set.lists[offset]);
    publish(set, offset, entry.tokens);
  }
  if (head_role.attends_set && how.terms.front().source != plan::Source::probability) return;  // no log-sum-exps
  note_coverage(entry, {layer, head}, {head_scores, score_stride, lse, group}, set,
                threads[static_cast<std::size_t>(ith)]);
}

void Runner::State::select_layer(int layer, int batch_index, int ith) {
  BatchEntry& entry = batch[static_cast<std::size_t>(batch_index)];
  SequenceState& state = *entry.rows.state;
  ThreadScratch& thread = threads[static_cast<std::size_t>(ith)];
  const plan::Role& head_role = role(entry, layer, 0);
  const plan::Selector& how = selector(entry, head_role);
  const plan::Term& first = how.terms.front();
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  for (std::size_t head = 0; head < kv_heads; ++head) {
    thread.heads[head] = {scores.data() + entry.score_offset[head], score_stride,
                          entry.lse.data() + head * static_cast<std::size_t>(group),
                          scoring_queries(first, static_cast<int>(head), group)};
  }
  const std::span<const HeadScores> heads(thread.heads);
  PublishedSet& set = state.sets.at({layer, 0});
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const std::span<float> pooled(thread.selection.pooled.data(), tokens);
  if (first.heads == plan::HeadPooling::rank_merge) {
    choose_by_rank(how, heads, tokens, thread.selection, set.lists[0]);
  } else if (by_parts(how) || head_role.reads.layer >= 0) {
    Parts parts;
    parts.tokens = tokens;
    if (first.source != plan::Source::heat) parts.heads = heads;
    if (head_role.reads.layer >= 0) parts.inherited = state.sets.at(head_role.reads).chosen;
    if (state.has_heat()) {
      auto& heat = state.heat(layer);
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
  if (first.source == plan::Source::heat) return;
  if (head_role.attends_set && first.source != plan::Source::probability) return;  // no log-sum-exps
  for (int head = 0; head < shape.kv_heads; ++head) {
    const HeadScores& scored = heads[static_cast<std::size_t>(head)];
    if (scored.group > 0) note_coverage(entry, {layer, head}, scored, set, thread);
  }
}

}  // namespace glimpse::attention
