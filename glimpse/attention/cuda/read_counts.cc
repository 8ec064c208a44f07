#include "glimpse/attention/cuda/read_counts.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "glimpse/attention/row_reads.h"

namespace glimpse::attention::cuda {
namespace {

/// What a head reads in an entry's row.
kernels::Read read_of(const PassEntry& entry, const HeadOp& head) {
  return entry.dense ? kernels::Read{} : head.read_at(entry.tokens, entry.first_set);
}

/// What each slot got is a pass of its own over K; heat is made of the scores that attention leaves.
bool sums_columns(const PassEntry& entry) {
  return entry.rows.program->feeds() && !entry.rows.state->heat.any();
}

/// What the searches of a head's tree read: its units, and the clusters of those that were opened.
std::int64_t tree_bytes(const PassReads& pass, const PassEntry& entry, const SelectOp& select,
                        const kernels::cuda::Tree& tree) {
  const std::int64_t dim = pass.cache.shape().format.dim;
  if (tree.ends == nullptr) {  // clusters of tokens: all means, the tokens of some
    return select.lists * (tree.clusters * dim + searched_tokens(entry, select)) * std::int64_t{sizeof(float)};
  }
  const auto* const opened = pass.counts + pass.tables.sizes().sets + first_set(entry, select.writes);
  const std::int64_t nodes =
      select.lists * std::int64_t{tree.branches} + std::accumulate(opened, opened + select.lists, std::int64_t{0});
  return nodes * (dim * std::int64_t{sizeof(std::uint16_t)} + std::int64_t{sizeof(float)});
}

/// What a search of a head's units read: their rows, and the weights of its gate.
std::int64_t unit_bytes(const PassReads& pass, const PassEntry& entry, const SelectOp& select) {
  const std::int64_t units = searched_units(entry, select);
  if (units == 0) return 0;
  const UnitShape unit = shape_of_units(*units_of(entry.rows, select.writes.layer, select.first_head));
  std::int64_t values = units * (unit.values + (unit.radii ? 1 : 0));
  if (select.selector->terms.front().source == plan::Source::gate) {
    values += std::int64_t{pass.group} * unit.width * pass.cache.shape().format.dim;
  }
  return values * std::int64_t{sizeof(float)};
}

/// Rows whose keys were made from factors: of a set all before the window but those of outliers.
void count_made(const PassReads& pass, const PassEntry& entry, int layer, int head, ReadCounters& counters) {
  const HeadOp& op = entry.rows.program->head(layer, head);
  const SelectOp& select = entry.rows.program->select(layer, head);
  const std::int64_t end = made_end(entry, layer, head), block = select.selector->block;
  const auto marked = marked_units(*units_of(entry.rows, layer, head));
  const auto* const counts = pass.counts;
  for (int list = 0; list < select.lists; ++list) {
    const std::int32_t count = counts[first_set(entry, op.set) + list];
    const std::int64_t slots = count == kernels::kEverything ? entry.tokens : count;
    std::int64_t rows = slots - (entry.tokens - end);
    for (const std::int32_t unit : marked)
      rows -= std::max<std::int64_t>(0, std::min((unit + 1) * block, end) - unit * block);
    rows = std::max<std::int64_t>(0, rows);  // a budget below the outliers takes some of them
    counters.low_rank_rows += rows;
    if (rows == 0) continue;
    const std::int64_t factors = op.key_rank * static_cast<std::int64_t>(sizeof(std::uint16_t));
    counters.low_rank_bytes +=
        rows * factors + std::int64_t{op.key_rank} * pass.cache.shape().format.dim * std::int64_t{sizeof(float)};
  }
}

/// What a sequence reads whose heads hold all of its tokens and make no keys.
void count_alike(const PassEntry& entry, RowReads& reads, ReadCounters& counters) {
  const bool sums = sums_columns(entry);
  for (const ProgramFacts::SameReads& same : entry.facts->reads) {
    const std::int64_t slots =
        reads.add({read_of(entry, *same.head), entry.tokens, same.heads, same.head->compensates()});
    if (sums) counters.k_rows += same.heads * slots;
  }
}

/// The same head by head.
void count_heads(const PassReads& pass, const PassEntry& entry, RowReads& reads, ReadCounters& counters) {
  const bool sums = sums_columns(entry);
  std::vector<std::int64_t> live;
  pass.cache.live_tokens(entry.rows.sequence, live);
  std::size_t at = 0;
  for (int layer = 0; layer < pass.cache.shape().layers; ++layer) {
    for (int head = 0; head < pass.cache.shape().kv_heads; ++head) {
      const HeadOp& op = entry.rows.program->head(layer, head);
      const std::int64_t slots = reads.add({read_of(entry, op), live[at++], 1, op.compensates()});
      if (sums) counters.k_rows += slots;
      if (makes_keys(entry, layer, head)) count_made(pass, entry, layer, head, counters);
    }
  }
}

/// What searches and scores read before sets are made.
void count_selects(const PassReads& pass, std::size_t number, ReadCounters& counters) {
  const PassEntry& entry = pass.tables.entries()[number];
  const ProgramFacts& facts = *entry.facts;
  for (const ProgramFacts::Bounds& bounds : facts.bound_searches) {
    counters.index_bytes +=
        bounds.searches * (searched_blocks(entry, *bounds.selector) * bounds.selector->block / kernels::kPageTokens *
                           static_cast<std::int64_t>(kernels::summary_bytes(pass.cache.shape().format)));
  }
  for (int layer = 0; layer < pass.cache.shape().layers; ++layer) {
    const ProgramFacts::Layer& of_layer = facts.layers[static_cast<std::size_t>(layer)];
    if (of_layer.scored > 0 && !pass.layers.makes_sets_late(pass.tables, number, layer)) {
      counters.k_rows += of_layer.scored * entry.tokens;  // scores are a pass of their own over K
    }
    const std::vector<SelectOp>& selects = entry.rows.program->layer(layer).selects;
    for (std::size_t i = 0; i < selects.size() && (facts.trees || facts.units); ++i) {
      const SelectOp& select = selects[i];
      if (of_layer.sources[i] == SetSource::tree) {
        counters.index_bytes +=
            tree_bytes(pass, entry, select, entry.trees->copies[entry.rows.state->head(layer, select.first_head)].tree);
      } else if (of_layer.sources[i] == SetSource::units) {
        counters.index_bytes += unit_bytes(pass, entry, select);
      }
    }
  }
}

}  // namespace

void count_reads(const PassReads& pass, std::size_t number, ReadCounters& counters) {
  const PassEntry& entry = pass.tables.entries()[number];
  const bool alike = pass.cache.holds_all(entry.rows.sequence) && !entry.facts->makes_keys && entry.is_end;
  RowReads reads(entry.rows, pass.counts, counters);
  if (alike) {
    count_alike(entry, reads, counters);
  } else {
    count_heads(pass, entry, reads, counters);
  }
  if (!entry.dense) count_selects(pass, number, counters);
  reads.end();
}

}  // namespace glimpse::attention::cuda
