// What a pass asks of sets that several candidates make (attention::is_union, Combine::union_sets,
// HeadPooling::rank_merge).
#include <algorithm>

#include "glimpse/attention/choose.h"
#include "glimpse/attention/cuda/layer_lists.h"

namespace glimpse::attention::cuda {

UnionSize union_size(const SelectOp& select, std::int64_t tokens) {
  const plan::Selector& selector = *select.selector;
  const plan::Term& first = selector.terms.front();
  if (first.source == plan::Source::heat) return {};
  if (select.merges_ranks()) return {plan::budget_tokens(selector.budget, tokens) / selector.block, select.parts};
  return {plan::term_tokens(selector, first, tokens) / selector.block, select.parts};
}

void add_rank_merge(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to) {
  const plan::Selector& selector = *select.selector;
  const int group = entry.rows.program->shape().group();
  const UnionSize size = union_size(select, entry.tokens);
  const int set = first_set(entry, select.writes);
  kernels::Choice choice = choice_of(selector, static_cast<std::size_t>(entry.tokens));
  choice.row = row;
  choice.head = select.first_head;
  choice.pooling = kernels::Pooling::max_score;
  to.ranks.push_back({.row = row,
                      .head = select.first_head,
                      .block = selector.block,
                      .head_units = choice.head_units,
                      .tail_units = choice.tail_units,
                      .first_list = set + select.lists,
                      .lists = size.lists,
                      .wanted = choice.wanted});
  kernels::Choice own = choice;  // of one query head: with what is always in, which has no rank
  own.set = set + select.lists;
  for (int head = select.first_head; head < select.first_head + select.heads; ++head) {
    to.scores.push_back({row, head});
    own.head = head;
    for (own.query = 0; own.query < group; ++own.query, ++own.set) to.choices.push_back(own);
  }
  choice.query = 0;
  choice.set = set;
  choice.by_unit = 1;
  to.united.push_back(choice);
}

void add_union(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to) {
  const plan::Selector& selector = *select.selector;
  const int group = entry.rows.program->shape().group();
  const UnionSize size = union_size(select, entry.tokens);
  const int set = first_set(entry, select.writes);
  kernels::Choice choice = choice_of(selector, static_cast<std::size_t>(entry.tokens));
  kernels::cuda::Union made;
  made.row = row;
  made.head = select.first_head;
  made.block = selector.block;
  made.head_units = choice.head_units;
  made.tail_units = choice.tail_units;
  made.room = choice.wanted;
  made.first_list = set + select.lists;
  made.lists = size.lists;
  made.wanted = static_cast<std::int32_t>(size.wanted);
  made.first_query = static_cast<std::int32_t>(to.union_queries.size());
  if (plan::reads_heat(selector)) made.heat = entry.heat_of(select.writes.layer);
  if (entry.first_kept >= 0) made.keeps = entry.first_kept + select.writes.layer;
  if (select.joins.layer >= 0) made.joins = entry.first_kept + select.joins.layer;

  const std::int64_t units = (entry.tokens + selector.block - 1) / selector.block;
  kernels::Choice own;  // of one query head: its best units, wherever they lie
  own.row = row;
  own.set = made.first_list;
  own.pooling = kernels::Pooling::max_score;
  own.wanted = made.wanted;
  own.block = selector.block;
  own.tail_units = static_cast<std::int32_t>(units);
  const std::vector<int>& named = selector.terms.front().query_heads;
  for (int i = 0; i < select.heads && size.lists > 0; ++i) {
    const int head = select.first_head + i;
    if (select.queries[static_cast<std::size_t>(i)] > 0) to.scores.push_back({row, head});
    for (int query = head * group; query < (head + 1) * group; ++query) {
      if (!named.empty() && std::find(named.begin(), named.end(), query) == named.end()) continue;
      own.head = head;
      own.query = query % group;
      to.choices.push_back(own);
      to.union_queries.push_back(query);
      ++own.set;
    }
  }
  to.unions.push_back(made);

  choice.row = row;
  choice.head = select.first_head;
  choice.query = 0;
  choice.set = set;
  choice.pooling = kernels::Pooling::max_score;
  choice.by_unit = 1;
  to.united.push_back(choice);
}

}  // namespace glimpse::attention::cuda
