#include "glimpse/attention/cuda/read_counts.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"

namespace glimpse::attention::cuda {
namespace {

/// Slots of K and V that a head of a decoding row read, of those that hold its tokens.
std::int64_t read_slots(const PassReads& pass, const PassEntry& entry, plan::SlotId head, std::int64_t slots,
                        bool& sparse) {
  const HeadOp& op = entry.rows.program->head(head.layer, head.head);
  sparse |= slots < entry.tokens;
  if (entry.dense || op.reads == HeadOp::Reads::everything) return slots;
  if (op.reads == HeadOp::Reads::window) {
    const std::int64_t window = op.window->sink + plan::window_tokens(*op.window, entry.tokens);
    sparse |= window < entry.tokens;
    return std::min(window, slots);
  }
  const auto* const counts = pass.counts;
  const int first = first_set(entry, op.set);
  const int lists = entry.rows.program->select(op.set.layer, op.set.head).lists;
  std::int64_t sum = 0;
  bool all = true;
  for (int i = 0; i < lists; ++i) {
    const bool everything = counts[first + i] == kernels::kEverything;
    sum += everything ? slots : counts[first + i];
    all &= everything;
  }
  if (all) return slots;
  sparse = true;
  return sum;
}

/// True where a mean token stands for what a window lost.
bool has_mean_token(const PassEntry& entry, int layer, int head) {
  const HeadOp& op = entry.rows.program->head(layer, head);
  return op.reads == HeadOp::Reads::window && op.kept != nullptr && op.kept->compensates &&
         op.window->sink + plan::window_tokens(*op.window, entry.tokens) < entry.tokens;
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
      select.lists * std::int64_t{tree.units} + std::accumulate(opened, opened + select.lists, std::int64_t{0});
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

}  // namespace

void count_reads(const PassReads& pass, std::size_t number, ReadCounters& counters) {
  const PassEntry& entry = pass.tables.entries()[number];
  bool sparse = false;
  std::vector<std::int64_t> live;
  pass.cache.live_tokens(entry.rows.sequence, live);
  std::size_t at = 0;
  for (int layer = 0; layer < pass.cache.shape().layers; ++layer) {
    for (int head = 0; head < pass.cache.shape().kv_heads; ++head) {
      const std::int64_t slots = read_slots(pass, entry, {layer, head}, live[at++], sparse);
      counters.k_rows += slots;
      counters.v_rows += slots;
      if (makes_keys(entry, layer, head)) count_made(pass, entry, layer, head, counters);
      if (!entry.dense && has_mean_token(entry, layer, head)) ++counters.k_rows, ++counters.v_rows;
      // Once more for what each slot got; heat is made of the scores that attention leaves.
      if (entry.rows.program->feeds() && !entry.rows.state->has_heat()) counters.k_rows += slots;
      counters.dense_k_rows += entry.tokens;
      counters.dense_v_rows += entry.tokens;
    }
    if (entry.dense) continue;
    for (const SelectOp& select : entry.rows.program->layer(layer).selects) {
      if (searches_tree(select)) {
        const auto& copies = pass.trees.copies(entry.rows);
        counters.index_bytes +=
            tree_bytes(pass, entry, select, copies[entry.rows.state->head(layer, select.first_head)].tree);
      } else if (searches_units(select)) {
        counters.index_bytes += unit_bytes(pass, entry, select);
      } else if (select.from == SelectOp::From::index) {
        counters.index_bytes += searched_blocks(entry, *select.selector) * select.selector->block /
                                kernels::kPageTokens *
                                static_cast<std::int64_t>(kernels::summary_bytes(pass.cache.shape().format));
      } else if (!pass.layers.makes_sets_late(pass.tables, number, layer)) {
        const auto scoring = std::count_if(select.queries.begin(), select.queries.end(), [](int n) { return n > 0; });
        counters.k_rows += scoring * entry.tokens;  // scores are a pass of their own over K
      }
    }
  }
  if (sparse) {
    counters.sparse_steps = 1;
  } else {
    counters.add_dense_step(dense_reason(entry.rows));
  }
}

}  // namespace glimpse::attention::cuda
