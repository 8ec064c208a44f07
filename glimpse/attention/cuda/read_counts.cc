#include "glimpse/attention/cuda/read_counts.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"

namespace glimpse::attention::cuda {
namespace {

/// Slots that are read of so many.
struct Slots {
  std::int64_t count = 0;
  bool all = true;
};

/// Of a set's lists.
Slots slots_of(const std::int32_t* counts, int lists, std::int64_t slots) {
  Slots read;
  for (const std::int32_t count : std::span(counts, static_cast<std::size_t>(lists))) {
    read.count += count == kernels::kEverything ? slots : count;
    read.all &= count == kernels::kEverything;
  }
  if (read.all) read.count = slots;
  return read;
}

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
  const int lists = entry.rows.program->select(op.set.layer, op.set.head).lists;
  const Slots read = slots_of(pass.counts + first_set(entry, op.set), lists, slots);
  sparse |= !read.all;
  return read.count;
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

/// What a sequence reads whose heads hold all of its tokens and make no keys; true where a head reads less than those.
bool count_alike(const PassReads& pass, const PassEntry& entry, ReadCounters& counters) {
  const ProgramFacts& facts = *entry.facts;
  const bool feeds = entry.rows.program->feeds() && !entry.rows.state->has_heat();
  const auto add = [&](const SameReads& heads, std::int64_t slots) {
    counters.k_rows += heads.heads * slots;
    counters.v_rows += heads.heads * slots;
    if (feeds) counters.k_rows += heads.heads * slots;  // once more for what each slot got
  };
  add(facts.everything, entry.tokens);
  bool sparse = false;
  for (const ProgramFacts::Windows& heads : facts.windows) {
    const std::int64_t window = heads.window->sink + plan::window_tokens(*heads.window, entry.tokens);
    const bool less = !entry.dense && window < entry.tokens;
    sparse |= less;
    add(heads, less ? window : entry.tokens);
    if (less) counters.k_rows += heads.compensated, counters.v_rows += heads.compensated;
  }
  for (const ProgramFacts::Sets& heads : facts.read_sets) {
    const Slots read = entry.dense ? Slots{entry.tokens, true}
                                   : slots_of(pass.counts + entry.first_set + heads.first, heads.lists, entry.tokens);
    sparse |= !read.all;
    add(heads, read.count);
  }
  return sparse;
}

/// The same head by head.
bool count_heads(const PassReads& pass, const PassEntry& entry, ReadCounters& counters) {
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
    }
  }
  return sparse;
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
  const std::vector<TreeCopy>* const trees = facts.trees ? &pass.trees.copies(entry.rows) : nullptr;
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
            tree_bytes(pass, entry, select, (*trees)[entry.rows.state->head(layer, select.first_head)].tree);
      } else if (of_layer.sources[i] == SetSource::units) {
        counters.index_bytes += unit_bytes(pass, entry, select);
      }
    }
  }
}

}  // namespace

void count_reads(const PassReads& pass, std::size_t number, ReadCounters& counters) {
  const PassEntry& entry = pass.tables.entries()[number];
  const bool alike = pass.cache.holds_all(entry.rows.sequence) && !entry.facts->makes_keys &&
                     pass.cache.length(entry.rows.sequence) == entry.tokens;
  const bool sparse = alike ? count_alike(pass, entry, counters) : count_heads(pass, entry, counters);
  const std::int64_t dense = std::int64_t{pass.cache.shape().layers} * pass.cache.shape().kv_heads * entry.tokens;
  counters.dense_k_rows += dense;
  counters.dense_v_rows += dense;
  if (!entry.dense) count_selects(pass, number, counters);
  if (sparse) {
    counters.sparse_steps = 1;
  } else {
    counters.add_dense_step(dense_reason(entry.rows));
  }
}

}  // namespace glimpse::attention::cuda
