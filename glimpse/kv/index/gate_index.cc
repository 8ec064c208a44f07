#include "glimpse/kv/index/gate_index.h"

#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/index.h"
#include "glimpse/kv/index/always_in.h"
#include "glimpse/kv/index/block_search.h"

namespace glimpse::kv {

GateIndex::GateIndex(const plan::Selector& selector, const HeadGates& gates) : selector_(selector), gates_(gates) {
  check(selector.block == gates.gates->weights().block, "a gate's blocks are the selector's");
}

void GateIndex::write(const KeySource& keys, std::int64_t block) {
  const GateWeights& weights = gates_.gates->weights();
  const std::int64_t first = block * selector_.block;
  std::vector<float> rows(static_cast<std::size_t>(selector_.block) * static_cast<std::size_t>(weights.head_dim));
  kernels::read_keys(keys.format, *keys.head, static_cast<std::int32_t>(first), selector_.block, rows.data());
  gates_.gates->key(gates_.head, first, rows.data(), keys_.own().data() + static_cast<std::size_t>(block) * dim());
}

void GateIndex::extend(const KeySource& keys, std::int64_t tokens) {
  while (covered() + selector_.block <= tokens) {
    keys_.own().resize(keys_->size() + dim());
    write(keys, held() - 1);
  }
}

void GateIndex::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  for (std::int64_t at = first / selector_.block; at * selector_.block < std::min(last, covered()); ++at) {
    write(keys, at);
  }
}

std::size_t GateIndex::score(const IndexQuery& query, std::pair<std::int64_t, std::int64_t> first_count,
                             IndexScratch& scratch, float* scores) const {
  const Gates& gates = *gates_.gates;
  const auto [first, count] = first_count;
  if (scratch.queries.size() < dim() + gates.work_floats()) scratch.queries.resize(dim() + gates.work_floats());
  float* own = scratch.queries.data();
  gates.query(gates_.head, query.tokens - 1, query.queries, own + dim(), own);
  kernels::NodeScoreItem item;
  item.rows = reinterpret_cast<const std::byte*>(keys_->data() + static_cast<std::size_t>(first) * dim());
  item.type = KvType::f32;
  item.width = gates.dim();
  item.count = static_cast<std::int32_t>(count);
  item.queries = own;
  item.scale = 1.0F / std::sqrt(static_cast<float>(gates.dim()));
  item.scores = scores;
  kernels::score_nodes(item);
  return gates.query_bytes() + static_cast<std::size_t>(count) * dim() * sizeof(float);
}

/// The open blocks of probability tau and more.
std::size_t GateIndex::take_probable(const IndexQuery& query, const OpenBlocks& at, IndexScratch& scratch,
                                     std::vector<std::int32_t>& set) const {
  const std::int64_t block = selector_.block;
  const auto blocks = static_cast<std::size_t>((query.tokens + block - 1) / block);
  if (scratch.scores.size() < blocks) scratch.scores.resize(blocks);
  std::fill_n(scratch.scores.begin() + static_cast<std::ptrdiff_t>(held()), blocks - static_cast<std::size_t>(held()),
              0.0F);
  const std::size_t read = held() == 0 ? 0 : score(query, {0, held()}, scratch, scratch.scores.data());
  const auto sum = static_cast<double>(kernels::log_sum_exp({scratch.scores.data(), blocks}));
  for (std::int64_t i = at.sink; i < at.tail; ++i) {
    const double probability = std::exp(static_cast<double>(scratch.scores[static_cast<std::size_t>(i)]) - sum);
    if (probability >= selector_.budget.value) add_range(set, i * block, (i + 1) * block);
  }
  return read;
}

std::size_t GateIndex::search(const IndexQuery& query, IndexScratch& scratch, std::vector<std::int32_t>& set) const {
  check(query.group == gates_.gates->weights().group, "a gate takes the whole group");
  const std::int64_t block = selector_.block;
  const OpenBlocks at = open_blocks(selector_, query, held());
  set.clear();
  add_range(set, 0, std::min(at.sink * block, query.tokens));
  std::size_t read = 0;
  if (selector_.budget.rule == plan::BudgetRule::threshold) {
    read = take_probable(query, at, scratch, set);
  } else if (at.room >= at.open()) {
    add_range(set, at.sink * block, at.tail * block);
  } else if (at.room > 0) {
    const auto open = static_cast<std::size_t>(at.open());
    if (scratch.scores.size() < open) scratch.scores.resize(open);
    read = score(query, {at.sink, at.open()}, scratch, scratch.scores.data());
    take_best(at, block, {scratch.scores.data(), open}, scratch, set);
  }
  add_range(set, at.tail * block, query.tokens);
  return read;
}

std::vector<std::int32_t> GateIndex::units_of(std::span<const std::int32_t> set, std::int64_t tokens) const {
  return open_blocks_of(selector_, held(), set, tokens);
}

}  // namespace glimpse::kv
