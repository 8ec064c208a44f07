// What a pass asks of indices over units: landmarks, gates, digests that do not hang on pages. Of units that are chunks
// chunk_searches.cc says it.
#include <algorithm>
#include <cmath>

#include "glimpse/attention/choose.h"
#include "glimpse/attention/cuda/flat_units.h"
#include "glimpse/attention/cuda/layer_lists.h"
#include "glimpse/attention/cuda/set_source.h"
#include "glimpse/attention/cuda/units.h"
#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/block_search.h"

namespace glimpse::attention::cuda {
namespace {

/// Where a search may choose.
struct OpenUnits {
  kv::OpenBlocks at;
  std::int64_t held = 0;  ///< units that the index holds, of tokens that this row may see
  bool takes_probable = false;

  bool chooses() const { return takes_probable ? at.open() > 0 : at.room > 0 && at.room < at.open(); }
  std::int32_t first() const { return static_cast<std::int32_t>(takes_probable || !chooses() ? 0 : at.sink); }
  std::int32_t last() const {
    if (!chooses()) return 0;
    return static_cast<std::int32_t>(takes_probable ? held : at.tail);  // a softmax is over all blocks
  }
};

OpenUnits open_units(const PassEntry& entry, const SelectOp& select) {
  const plan::Selector& selector = *select.selector;
  const kv::KeyIndex& index = *units_of(entry.rows, select.writes.layer, select.first_head);
  OpenUnits open;
  const std::int64_t seen = entry.rows.kind == PassKind::draft ? entry.rows.committed : entry.tokens;
  open.held = std::min(index.covered(), seen) / selector.block;
  open.takes_probable = selector.budget.rule == plan::BudgetRule::threshold;
  kv::IndexQuery query;
  query.tokens = entry.tokens;
  query.budget = plan::budget_tokens(selector.budget, entry.tokens);
  open.at = kv::open_blocks(selector, query, open.held);
  if (!selector.counts_local) {  // marked units stand beside a budget that counts nothing else that is always read
    const auto marked = marked_units(index);
    open.at.room += std::count_if(marked.begin(), marked.end(),
                                  [&](std::int32_t unit) { return unit >= open.at.sink && unit < open.at.tail; });
  }
  return open;
}

}  // namespace

std::int64_t searched_units(const PassEntry& entry, const SelectOp& select) {
  if (searches_chunks(select)) return searched_chunks(entry, select);
  const OpenUnits open = open_units(entry, select);
  return open.last() - open.first();
}

std::int64_t unit_stride(const PassEntry& entry, const SelectOp& select) {
  if (searches_chunks(select)) return chunk_stride(entry, select);
  return (length_step(entry.tokens) + select.selector->block - 1) / select.selector->block;
}

std::int64_t unit_capacity(const PassEntry& entry, const SelectOp& select) {
  if (searches_chunks(select)) return chunk_capacity(entry, select);
  const std::int64_t most = length_step(entry.tokens), block = select.selector->block;
  const OpenUnits open = open_units(entry, select);
  if (open.takes_probable) return most;
  const std::int64_t always = entry.tokens - open.at.open() * block;
  return std::min(most, length_step(always + std::min(open.at.open(), open.at.room) * block));
}

void add_unit_search(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to) {
  if (searches_chunks(select)) return add_chunk_search(entry, select, row, to);
  const plan::Selector& selector = *select.selector;
  const plan::Term& term = selector.terms.front();
  const int group = entry.rows.program->shape().heads / entry.rows.program->shape().kv_heads;
  const OpenUnits open = open_units(entry, select);
  const bool alone = select.lists > 1 || group == 1;
  kernels::cuda::UnitSearch search;
  search.row = row;
  search.head = select.first_head;
  search.first = open.first();
  search.last = open.last();
  search.weight = static_cast<float>(term.index.deviation_weight);
  search.softmax = open.takes_probable || (term.group == plan::GroupPooling::max_probability && !alone) ? 1 : 0;
  kernels::Choice choice;
  choice.row = row;
  choice.head = select.first_head;
  choice.block = selector.block;
  choice.by_unit = 1;
  choice.pooling =
      term.group == plan::GroupPooling::mean_score ? kernels::Pooling::mean_score : kernels::Pooling::max_score;
  choice.head_units = static_cast<std::int32_t>(open.at.sink);
  const bool takes_all = !open.takes_probable && open.at.room > 0 && !open.chooses();
  choice.tail_units = static_cast<std::int32_t>(takes_all ? open.at.sink : open.at.tail);
  choice.wanted = static_cast<std::int32_t>(open.at.room);
  if (open.takes_probable) {
    const std::int64_t blocks = (entry.tokens + selector.block - 1) / selector.block;
    search.zeros = static_cast<std::int32_t>(blocks - open.held);
    choice.rule = kernels::ChoiceRule::threshold;
    choice.value = std::log(selector.budget.value);
  }
  if (term.source == plan::Source::gate) {
    search.gate = static_cast<std::int32_t>(to.gates.size());
    to.gates.push_back({.row = row, .head = select.first_head});
  }
  search.mean_query = term.group == plan::GroupPooling::mean_query && search.gate < 0 ? 1 : 0;
  to.units.push_back(search);
  const bool one_query = search.gate >= 0 || search.mean_query != 0;
  const int set = first_set(entry, select.writes);
  for (int list = 0; list < select.lists; ++list) {
    choice.query = one_query ? 0 : select.lists > 1 ? list : -1;
    choice.set = set + list;
    to.choices.push_back(choice);
  }
}

bool makes_rows(const PassEntry& entry, int layer, int head) {
  return makes_keys(entry, layer, head) || (entry.waits && entry.rows.program->head(layer, head).has_tier());
}

bool makes_keys(const PassEntry& entry, int layer, int head) {
  return !entry.dense && entry.rows.program->head(layer, head).key_rank > 0 &&
         entry.rows.state->low_rank[static_cast<std::size_t>(layer)] != nullptr;
}

std::int64_t made_end(const PassEntry& entry, int layer, int head) {
  const plan::Selector& selector = *entry.rows.program->select(layer, head).selector;
  return std::min(units_of(entry.rows, layer, head)->covered(),
                  kv::window_block(selector, entry.tokens) * selector.block);
}

void add_made(const PassEntry& entry, int layer, int row, GroupLayer& to) {
  const Program& program = *entry.rows.program;
  for (int head = 0; head < program.shape().kv_heads; ++head) {
    if (!makes_rows(entry, layer, head)) continue;
    const HeadOp& op = program.head(layer, head);
    const SelectOp& select = program.select(layer, head);
    kernels::cuda::MadeSet made;
    made.row = row;
    made.head = head;
    made.chunk = select.selector->block;
    if (makes_keys(entry, layer, head)) {
      made.end = static_cast<std::int32_t>(made_end(entry, layer, head));
      made.rank = op.key_rank;
    }
    for (int list = 0; list < select.lists; ++list) {
      made.set = first_set(entry, op.set) + list;
      made.list = entry.first_made + head * entry.made_lists + list;
      made.first = static_cast<std::int32_t>(list * (entry.made_of_head / entry.made_lists));
      to.made.push_back(made);
    }
  }
}

}  // namespace glimpse::attention::cuda
