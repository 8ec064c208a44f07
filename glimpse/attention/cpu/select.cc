#include "glimpse/attention/cpu/select.h"

#include <algorithm>

#include "glimpse/attention/cpu/audit.h"
#include "glimpse/attention/cpu/tiles.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

/// Parts that score all keys for one set.
void add_scores(Pass& pass, BatchEntry& entry, int index, const SelectOp& select) {
  for (int i = 0; i < select.heads; ++i) {
    const int queries = select.queries[static_cast<std::size_t>(i)];
    if (queries == 0) continue;
    HeadOutput output = pass.output_of(index, select.first_head + i);
    output.queries = queries;
    output.entries = static_cast<std::int32_t>(entry.tokens);
    output.sums = select.selector->terms.front().source == plan::Source::probability;
    entry.score_offset[static_cast<std::size_t>(output.head)] = pass.keep_scores(output);
    pass.work.add_range(pass.work.add(output), 0, output.entries);
  }
}

void add_decode_selects(Pass& pass, BatchEntry& entry, int index, int layer) {
  const SequenceState& state = *entry.rows.state;
  if (state.key_ranks[static_cast<std::size_t>(layer)] > 0 && !state.low_rank[static_cast<std::size_t>(layer)] &&
      state.prompt_tokens > 0) {  // forked from another plan, or dense until now
    pass.items.add({Item::Kind::factor, index});
  }
  for (const SelectOp& select : entry.layer(layer).selects) {
    if (select.from == SelectOp::From::index) {
      pass.items.add({Item::Kind::search, index, select.first_head});
    } else if (select.from == SelectOp::From::scores) {
      add_scores(pass, entry, index, select);
      if (!select.of_layer()) continue;
      const int scored = select.scored_heads();
      pass.layer_remaining[index].store(scored, std::memory_order_relaxed);
      if (scored == 0) pass.items.add({Item::Kind::choose, index});
    }
  }
}

}  // namespace

void build_select(Pass& pass, int layer) {
  pass.open_work();
  for (std::size_t b = 0; b < pass.batch_size; ++b) {
    BatchEntry& entry = pass.batch[b];
    pass.layer_remaining[b].store(0, std::memory_order_relaxed);
    if (entry.failure) continue;
    if (!entry.rows.decodes()) {
      if (entry.prompt.tile_tokens > 0) add_tiles(pass, entry, static_cast<int>(b), layer);
    } else if (!entry.dense) {
      add_decode_selects(pass, entry, static_cast<int>(b), layer);
    }
  }
  pass.seal_work(0);
}

void run_score(Pass& pass, const Call& call, const Part& part, const Part* next) {
  const HeadOutput& output = pass.work.output(part);
  BatchEntry& entry = pass.entry(output.batch);
  const plan::Term& term = entry.rows.program->select(call.layer, output.head).selector->terms.front();
  const float* some = nullptr;
  if (!term.query_heads.empty()) {  // only some of the group score
    const auto dim = static_cast<std::size_t>(pass.shape.head_dim);
    auto& queries = pass.thread(call.ith).queries;
    queries.clear();
    for (const int query_head : term.query_heads) {
      if (query_head / pass.group != output.head) continue;
      const float* from =
          pass.head_query(entry, call.q, 0, output.head) + static_cast<std::size_t>(query_head % pass.group) * dim;
      queries.insert(queries.end(), from, from + dim);
    }
    some = queries.data();
  }
  kernels::score_part(pass.reading(call), pass.work, part, next, some);
  if (!pass.work.finish(part)) return;
  if (output.sums) {
    pass.work.sum(output, pass.thread(call.ith).lse,
                  entry.lse.data() + static_cast<std::size_t>(output.head) * static_cast<std::size_t>(pass.group));
  }
  select_head(pass, call, output.batch, output.head);
}

void run_search(Pass& pass, const Call& call, const Item& item) {
  BatchEntry& entry = pass.entry(item.batch);
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
  ThreadScratch& thread = pass.thread(call.ith);
  const int set = entry.set_of(select.writes);
  for (int j = 0; j < select.lists; ++j) {
    kv::IndexQuery query;
    query.queries = pass.head_query(entry, call.q, 0, item.head) + j * pass.shape.head_dim;
    query.group = select.lists > 1 ? 1 : pass.group;
    query.scale = pass.scale;
    query.tokens = entry.tokens;
    query.budget = plan::budget_tokens(select.selector->budget, entry.tokens);
    entry.index_bytes[static_cast<std::size_t>(item.head)] += index.search(query, thread.index, thread.set);
    pass.sets.publish(set + j, thread.set);
  }
  pass.sets.close(set, select.lists, entry.tokens);
}

/// The prompt's last chunk builds what searches will read; a correction mends it.
void grow_index(Pass& pass, const Item& item, int layer) {
  BatchEntry& entry = pass.entry(item.batch);
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
  BatchEntry& entry = pass.entry(batch_index);
  const SelectOp& select = entry.rows.program->select(call.layer, head);
  if (select.of_layer()) {  // the last head to be scored selects for all
    if (pass.layer_remaining[batch_index].fetch_sub(1, std::memory_order_acq_rel) == 1)
      select_layer(pass, call, batch_index);
    return;
  }
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const kernels::Choice choice = choice_of(*select.selector, tokens);
  const float* head_scores = pass.scores.data() + entry.score_offset[static_cast<std::size_t>(head)];
  const float* lse = entry.lse.data() + static_cast<std::size_t>(head) * static_cast<std::size_t>(pass.group);
  const int set = entry.set_of(select.writes);
  for (int j = 0; j < select.lists; ++j) {
    const auto offset = static_cast<std::size_t>(j);
    const HeadScores of{head_scores + offset * pass.score_stride, pass.score_stride, lse + offset,
                        select.lists > 1 ? 1 : pass.group};
    pass.sets.publish(set + j, choose(choice, {&of, 1}, tokens, pass.thread(call.ith).selection));
  }
  pass.sets.close(set, select.lists, entry.tokens);
  if (!select.weighs) return;
  note_coverage(pass, entry, {call.layer, head}, {head_scores, pass.score_stride, lse, pass.group},
                pass.thread(call.ith));
}

void select_layer(Pass& pass, const Call& call, int batch_index) {
  BatchEntry& entry = pass.entry(batch_index);
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
  const int set = entry.set_of(select.writes);
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  if (first.heads == plan::HeadPooling::rank_merge) {
    choose_by_rank(how, heads, tokens, thread.selection, thread.set);
    pass.sets.publish(set, thread.set);
  } else if (is_union(how) || select.joins.layer >= 0) {
    Candidates from;
    from.tokens = tokens;
    if (first.source != plan::Source::heat) from.heads = heads;
    if (select.joins.layer >= 0) from.inherited = pass.sets.chosen(entry.set_of(select.joins));
    if (state.has_heat()) {
      auto& heat = state.heat(call.layer);
      const auto block = static_cast<std::size_t>(state.heat_block());
      if (heat.size() < (tokens + block - 1) / block) heat.resize((tokens + block - 1) / block, 0.0F);
      from.heat = heat;
    }
    choose_union(how, from, thread.selection, thread.set, pass.sets.chosen(set));
    pass.sets.publish(set, thread.set);
  } else {
    pass.sets.publish(set, choose(choice_of(how, tokens), heads, tokens, thread.selection));
  }
  pass.sets.close(set, 1, entry.tokens);
  if (!select.weighs) return;
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    const HeadScores& scored = heads[static_cast<std::size_t>(head)];
    if (scored.group > 0) note_coverage(pass, entry, {call.layer, head}, scored, thread);
  }
}

}  // namespace glimpse::attention
