#include "glimpse/attention/cpu/select.h"

#include <algorithm>

#include "glimpse/attention/cpu/audit.h"
#include "glimpse/attention/cpu/tiles.h"
#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

/// Parts that score all keys for an entry's sets.
void add_scores(Pass& pass, BatchEntry& entry, int index, int layer) {
  const LayerProgram& program = entry.layer(layer);
  pass.scored.clear();
  for (const SelectOp& select : program.selects) {
    for (int i = 0; i < select.heads && select.from == SelectOp::From::scores; ++i) {
      if (select.queries[static_cast<std::size_t>(i)] > 0) pass.scored.push_back({0, select.first_head + i});
    }
  }
  const kernels::ScoreOp<kernels::Place::host> op{.cache = pass.tables.cache(pass.cache->shape().format),
                                                  .rows = pass.tables.row(entry.rows.first_row),
                                                  .group = pass.group,
                                                  .scale = pass.scale,
                                                  .heads = pass.scored.data(),
                                                  .count = static_cast<int>(pass.scored.size()),
                                                  .out = {.stride = pass.score_stride}};
  kernels::add_scored(op, pass.work, [&](const kernels::Output& made, int head) {
    const SelectOp& select = entry.rows.program->select(layer, head);
    HeadOutput output{made, index, head};
    output.query += static_cast<std::size_t>(entry.rows.first_row) * static_cast<std::size_t>(pass.shape.heads);
    output.queries = select.queries[static_cast<std::size_t>(head - select.first_head)];
    output.sums = select.selector->terms.front().source == plan::Source::probability;
    pass.keep_scores(output);
    return output;
  });
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
    } else if (select.from == SelectOp::From::scores && select.of_layer()) {
      const int scored = select.scored_heads();
      pass.layer_remaining[index].store(scored, std::memory_order_relaxed);
      if (scored == 0) pass.items.add({Item::Kind::choose, index});
    }
  }
  add_scores(pass, entry, index, layer);
}

/// What the queries of a KV head that score left, one after the other.
HeadScores scores_of(Pass& pass, BatchEntry& entry, int head, int queries) {
  const kernels::ScoreTable<kernels::Place::host> table = pass.scores_of(entry);
  const auto query = static_cast<std::size_t>(head) * static_cast<std::size_t>(pass.group);
  return {table.scores.raw() + query * table.stride, table.stride, table.lse.raw() + query, queries};
}

/// The lists of a set that an operation makes from scores.
void choose_lists(Pass& pass, const Call& call, BatchEntry& entry, const SelectOp& select) {
  const kernels::SelectOp<kernels::Place::host> op{.cache = pass.tables.cache(pass.cache->shape().format),
                                                   .rows = pass.tables.row(entry.rows.first_row),
                                                   .group = pass.group,
                                                   .scores = pass.scores_of(entry),
                                                   .sets = pass.sets.table()};
  kernels::Choice choice = choice_of(*select.selector, static_cast<std::size_t>(entry.tokens));
  for (int list = 0; list < select.lists; ++list) {
    select.place(choice, list, entry.first_set);
    kernels::select_set(op, choice, pass.thread(call.ith).selection);
  }
  pass.sets.close(entry.set_of(select.writes), select.lists, entry.tokens);
}

/// A layer's set that several candidates make.
void unite(Pass& pass, const Call& call, BatchEntry& entry, const SelectOp& select) {
  ThreadScratch& thread = pass.thread(call.ith);
  const plan::Selector& how = *select.selector;
  const bool by_heat = how.terms.front().source == plan::Source::heat;
  for (int head = 0; head < pass.shape.kv_heads && !by_heat; ++head) {
    const auto at = static_cast<std::size_t>(head);
    thread.heads[at] = scores_of(pass, entry, head, select.queries[at]);
  }
  const auto tokens = static_cast<std::size_t>(entry.tokens);
  const int set = entry.set_of(select.writes);
  if (select.merges_ranks()) {
    choose_by_rank(how, thread.heads, tokens, thread.selection, thread.set);
  } else {
    SequenceState& state = *entry.rows.state;
    Candidates from;
    from.tokens = tokens;
    if (!by_heat) from.heads = thread.heads;
    if (select.joins.layer >= 0) from.inherited = pass.sets.chosen(entry.set_of(select.joins));
    if (state.heat.any()) {
      auto& heat = state.heat.of(call.layer);
      const auto block = static_cast<std::size_t>(state.heat.block());
      if (heat.size() < (tokens + block - 1) / block) heat.resize((tokens + block - 1) / block, 0.0F);
      from.heat = heat;
    }
    choose_union(how, from, thread.selection, thread.set, pass.sets.chosen(set));
  }
  pass.sets.publish(set, thread.set);
  pass.sets.close(set, 1, entry.tokens);
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

void run_score(Pass& pass, const Call& call, const Split& split, const Split* next) {
  const HeadOutput& output = pass.work.output(split);
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
  kernels::score_split(pass.reading(call), pass.work, split, next, some);
  if (!pass.work.finish(split)) return;
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
                             state.boundaries, state.prompt_tokens, pass.cache->digests()};
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
                             state.boundaries, open ? entry.tokens : state.prompt_tokens, pass.cache->digests()};
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
  choose_lists(pass, call, entry, select);
  if (!select.weighs) return;
  note_coverage(pass, entry, {call.layer, head}, scores_of(pass, entry, head, pass.group), pass.thread(call.ith));
}

void select_layer(Pass& pass, const Call& call, int batch_index) {
  BatchEntry& entry = pass.entry(batch_index);
  const SelectOp& select = entry.rows.program->select(call.layer, 0);
  if (!select.is_united()) {
    choose_lists(pass, call, entry, select);
  } else {
    unite(pass, call, entry, select);
  }
  if (!select.weighs) return;
  for (int head = 0; head < pass.shape.kv_heads; ++head) {
    const int queries = select.queries[static_cast<std::size_t>(head)];
    if (queries == 0) continue;
    note_coverage(pass, entry, {call.layer, head}, scores_of(pass, entry, head, queries), pass.thread(call.ith));
  }
}

}  // namespace glimpse::attention
