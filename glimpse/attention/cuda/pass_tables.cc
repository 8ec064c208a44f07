#include "glimpse/attention/cuda/pass_tables.h"

#include <algorithm>

#include "glimpse/attention/choose.h"
#include "glimpse/attention/cuda/set_source.h"
#include "glimpse/attention/cuda/tile_rows.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"
#include "glimpse/kv/index/block_search.h"

namespace glimpse::attention::cuda {
namespace {

/// Where a search of blocks may choose. The bounds of drafted tokens are there, but a draft is not to see them.
kv::OpenBlocks open_blocks(const PassEntry& entry, const plan::Selector& selector) {
  const std::int64_t indexed = entry.rows.kind == PassKind::draft ? entry.rows.committed : entry.tokens;
  kv::IndexQuery query;
  query.tokens = entry.tokens;
  query.budget = plan::budget_tokens(selector.budget, entry.tokens);
  return kv::open_blocks(selector, query, indexed / selector.block);
}

bool chooses(const kv::OpenBlocks& at) {
  return at.room > 0 && at.room < at.open();
}

/// What a selector with an index asks of the scores of blocks. Where the budget takes all that are open, all are always
/// in: nobody scores them.
kernels::Choice choice_of(const plan::Selector& selector, const kv::OpenBlocks& at) {
  kernels::Choice choice;
  set_pooling(selector.terms.front(), choice);
  choice.block = selector.block;
  choice.by_unit = 1;
  choice.head_units = static_cast<std::int32_t>(at.sink);
  choice.tail_units = static_cast<std::int32_t>(at.room > 0 && !chooses(at) ? at.sink : at.tail);
  choice.wanted = static_cast<std::int32_t>(at.room);
  return choice;
}

/// Searches of bounds and choices from scores differ from head to head in little.
class LastChoice {
 public:
  explicit LastChoice(const PassEntry& entry) : entry_(entry) {}

  const kv::OpenBlocks& blocks(const plan::Selector& selector) {
    if (of_blocks_ != &selector) blocks_ = open_blocks(entry_, selector);
    of_blocks_ = &selector;
    return blocks_;
  }
  const kernels::Choice& of(const SelectOp& select) {
    if (of_ != select.selector || from_ != select.from) {
      choice_ = select.from == SelectOp::From::index
                    ? choice_of(*select.selector, blocks(*select.selector))
                    : attention::choice_of(*select.selector, static_cast<std::size_t>(entry_.tokens));
    }
    of_ = select.selector;
    from_ = select.from;
    return choice_;
  }

 private:
  const PassEntry& entry_;
  const plan::Selector* of_blocks_ = nullptr;
  const plan::Selector* of_ = nullptr;
  SelectOp::From from_ = SelectOp::From::index;
  kv::OpenBlocks blocks_;
  kernels::Choice choice_;
};

void add_selects(const PassEntry& entry, int layer, int row, GroupLayer& to) {
  const std::span<const SelectOp> selects(entry.rows.program->layer(layer).selects);
  if (selects.empty()) return;
  const std::vector<SetSource>& sources = entry.facts->layers[static_cast<std::size_t>(layer)].sources;
  LastChoice last(entry);
  for (std::size_t i = 0; i < selects.size(); ++i) {
    const SelectOp& select = selects[i];
    switch (sources[i]) {
      case SetSource::ranks:
        add_rank_merge(entry, select, row, to);
        continue;
      case SetSource::united:
        add_union(entry, select, row, to);
        continue;
      case SetSource::tree:
        i += add_tree_searches(entry, selects.subspan(i), row, to) - 1;
        continue;
      case SetSource::units:
        add_unit_search(entry, select, row, to);
        continue;
      case SetSource::bounds: {
        const kv::OpenBlocks& at = last.blocks(*select.selector);
        const auto first = static_cast<std::int32_t>(at.sink);
        const auto end = static_cast<std::int32_t>(chooses(at) ? at.tail : at.sink);
        to.searches.push_back({row, select.first_head, select.selector->block / kernels::kPageTokens, first, end});
        break;
      }
      case SetSource::scores:
        for (int head = select.first_head; head < select.first_head + select.heads; ++head) {
          to.scores.push_back({row, head});
        }
        break;
    }
    const kernels::Choice& like = last.of(select);
    for (int list = 0; list < select.lists; ++list) {
      kernels::Choice& choice = to.choices.emplace_back(like);
      choice.row = row;
      select.place(choice, list, entry.first_set);
    }
  }
}

/// What the heads of a layer read in a row.
void add_reads(const PassEntry& entry, int layer, std::vector<kernels::Read>& to) {
  const ProgramFacts::Layer& facts = entry.facts->layers[static_cast<std::size_t>(layer)];
  const std::size_t first = to.size(), heads = facts.reads.size();
  if (entry.dense) {
    to.resize(first + heads);
    return;
  }
  if (facts.windows) {
    for (const HeadOp& head : entry.rows.program->layer(layer).heads) {
      to.push_back(head.read_at(entry.tokens, entry.first_set));
    }
    return;
  }
  to.insert(to.end(), facts.reads.begin(), facts.reads.end());
  for (kernels::Read& read : std::span(to).subspan(first)) {
    if (read.kind == kernels::Read::Kind::sets) read.set += entry.first_set;
  }
}

/// Where rows of a group's entries are put together their lists are read instead.
void read_made(std::span<const PassEntry> entries, int first_row, int layer, GroupLayer& to) {
  check(!to.late, "sets that are put together are read in the layer that makes them");  // no scores are left
  to.cached_reads = to.reads;
  for (kernels::Read& read : to.cached_reads) read.scores = 0;
  const auto kv_heads = static_cast<std::size_t>(entries.front().rows.program->shape().kv_heads);
  for (const PassEntry& entry : entries) {
    const auto row = static_cast<std::size_t>(entry.rows.first_row - first_row);
    for (int head = 0; head < static_cast<int>(kv_heads); ++head) {
      if (!makes_rows(entry, layer, head)) continue;
      const std::size_t at = row * kv_heads + static_cast<std::size_t>(head);
      to.reads[at].set = entry.first_made + head * entry.made_lists;
      // What waits cannot be read there, and nobody asks.
      if (entry.waits) to.cached_reads[at].kind = kernels::Read::Kind::nothing;
    }
  }
}

/// Makes sets late where that may be.
void defer_sets(std::size_t kv_heads, GroupLayer& to) {
  to.late = false;
  if (to.scores.empty()) return;
  const auto read_by = [&](const kernels::RowHead& at) -> kernels::Read& {
    return to.reads[static_cast<std::size_t>(at.row) * kv_heads + static_cast<std::size_t>(at.head)];
  };
  for (const kernels::RowHead& at : to.scores) {
    if (read_by(at).kind != kernels::Read::Kind::everything) return;
  }
  const auto makes = [&](std::int32_t set) {
    const auto is_it = [set](const auto& one) { return one.set == set; };
    return std::any_of(to.choices.begin(), to.choices.end(), is_it) ||
           std::any_of(to.united.begin(), to.united.end(), is_it) ||
           std::any_of(to.trees.begin(), to.trees.end(), is_it);
  };
  for (const kernels::Read& read : to.reads) {
    if (read.kind == kernels::Read::Kind::sets && makes(read.set)) return;
  }
  for (const kernels::RowHead& at : to.scores) read_by(at).scores = 1;
  to.scores.clear();
  to.late = true;
}

}  // namespace

std::int64_t searched_blocks(const PassEntry& entry, const plan::Selector& selector) {
  const kv::OpenBlocks at = open_blocks(entry, selector);
  return chooses(at) ? at.open() : 0;
}

void PassTables::make(std::span<const SequenceRows> batch, std::span<const std::int64_t> lengths,
                      std::span<const char> waits, std::span<const SearchedTrees* const> trees,
                      std::span<const ProgramFacts* const> facts) {
  entries_.resize(batch.size());
  groups_.clear();
  prompts_.clear();
  verified_.clear();
  sequence_.clear();
  behind_.clear();
  sizes_ = {};
  std::int32_t fresh = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    PassEntry& entry = entries_[i];
    entry.rows = batch[i];
    entry.tokens = batch[i].position + batch[i].rows;
    entry.is_end = entry.tokens == lengths[i];
    entry.dense = reads_everything(batch[i]);
    entry.first_made = -1;
    entry.waits = waits[i] != 0;
    entry.trees = trees[i];
    entry.facts = facts[i];
    if (!entry.dense) {
      number_sets(entry);
      size_selects(entry);
    }
    number_heat(entry);
    if (batch[i].audit) sizes_.stride = std::max(sizes_.stride, static_cast<std::size_t>(length_step(entry.tokens)));
    const std::int32_t behind = static_cast<std::int32_t>(lengths[i] - batch[i].position);
    fresh = std::max(fresh, behind);
    sizes_.longest = std::max(sizes_.longest, static_cast<std::int32_t>(length_step(lengths[i])));
    for (int row = 0; row < batch[i].rows; ++row) {
      sequence_.push_back(static_cast<std::int32_t>(i));
      behind_.push_back(behind - row);
    }
    const bool verified = is_verified(entry);
    if (verified || batch[i].rows > kFewRows || reads_tiles(batch[i])) {
      (verified ? verified_ : prompts_)
          .push_back({static_cast<std::int32_t>(i), batch[i].first_row, batch[i].rows, behind});
      continue;
    }
    if (groups_.empty() || groups_.back().first_entry + groups_.back().entries != i) {
      groups_.push_back({batch[i].first_row, 0, i, 0});
    }
    groups_.back().rows += batch[i].rows;
    ++groups_.back().entries;
  }
  sizes_.fresh = fresh;
  place_made();
}

bool PassTables::is_verified(const PassEntry& entry) const {
  const SequenceRows& rows = entry.rows;
  return reads_once_ && rows.kind == PassKind::verify && rows.rows > 1 &&
         (rows.rows > kFewRows || rows.rows * entry.tokens >= kFewReads);
}

void PassTables::size_selects(const PassEntry& entry) {
  const std::int64_t most = length_step(entry.tokens);
  const SelectOp* last_tree = nullptr;
  for (const SelectOp* one : entry.facts->sized) {
    const SelectOp& select = *one;
    if (entry.facts->trees && searches_tree(select)) {
      if (last_tree != nullptr && searches_alike(entry, *last_tree, select)) continue;
      last_tree = &select;
    }
    std::int64_t capacity = select.capacity(most), scores = most;
    if (select.is_united()) {
      const UnionSize size = union_size(select, most);
      capacity = std::max(capacity, size.wanted * select.selector->block);
      if (select.merges_ranks()) {
        sizes_.most_ranks = std::max(sizes_.most_ranks, static_cast<int>(size.wanted));
        sizes_.most_ranked = std::max(sizes_.most_ranked, size.lists);
      } else {
        sizes_.most_candidates = std::max(sizes_.most_candidates, static_cast<int>(size.wanted * size.lists));
      }
    }
    if (searches_tree(select)) {
      capacity = tree_capacity(entry, select);
      scores = 0;
    } else if (searches_units(select)) {
      capacity = unit_capacity(entry, select);
      scores = unit_stride(entry, select);
    } else if (select.from == SelectOp::From::index) {
      const std::int64_t block = select.selector->block;
      const kv::OpenBlocks at = open_blocks(entry, *select.selector);
      // What a draft does not see of the bounds is in every set, beside the budget.
      capacity = std::max(capacity, std::min(most, entry.tokens - at.open() * block + at.room * block));
      scores = (most + block - 1) / block;
      sizes_.most_blocks = std::max(sizes_.most_blocks, static_cast<std::int32_t>(scores));
    }
    sizes_.capacity = std::max(sizes_.capacity, static_cast<std::int32_t>(capacity));
    sizes_.stride = std::max(sizes_.stride, static_cast<std::size_t>((scores + 31) / 32 * 32));
  }
}

void PassTables::number_sets(PassEntry& entry) {
  const Program& program = *entry.rows.program;
  entry.first_set = sizes_.sets;
  int next = set_count(program);
  // Where rows are put together there are lists of where they lie, the same for all layers.
  entry.first_made = -1;
  entry.made_lists = 0;
  const bool makes = entry.facts->makes_keys || (entry.waits && entry.facts->has_tier);
  for (int layer = 0; layer < program.shape().layers && makes; ++layer) {
    for (int head = 0; head < program.shape().kv_heads; ++head) {
      if (!makes_rows(entry, layer, head)) continue;
      const plan::SlotId slot = program.head(layer, head).set;
      entry.made_lists = std::max(entry.made_lists, program.select(slot.layer, slot.head).lists);
    }
  }
  if (entry.made_lists > 0) {
    entry.first_made = sizes_.sets + next;
    next += program.shape().kv_heads * entry.made_lists;
  }
  sizes_.sets += next;
}

void PassTables::number_heat(PassEntry& entry) {
  const SequenceRows& rows = entry.rows;
  const Program& program = *rows.program;
  entry.first_heat = entry.first_kept = -1;
  entry.heats = 0;
  entry.observed = entry.tokens;
  if (!entry.dense && entry.facts->joins) {
    entry.first_kept = sizes_.kept;
    sizes_.kept += program.shape().layers;
  }
  std::int64_t block = entry.dense ? 0 : entry.facts->united_block;
  if (rows.kind == PassKind::prompt) {
    entry.observed = std::clamp<std::int64_t>(program.observe_from(rows.prompt_end), rows.position, entry.tokens);
  }
  const std::int64_t length = length_step(entry.tokens);
  if (rows.state->heat.any() && (rows.decodes() || entry.observed < entry.tokens)) {
    entry.first_heat = sizes_.heats;
    entry.heats = program.heat().per_layer ? program.shape().layers : 1;
    sizes_.heats += entry.heats;
    block = rows.state->heat.block();
    const std::int64_t read = entry.dense ? length : std::min<std::int64_t>(length, sizes_.capacity);
    sizes_.most_heated = std::max(sizes_.most_heated, static_cast<int>(read / block + 1));
    if (rows.decodes()) {  // of the scores that attention leaves
      sizes_.stride = std::max(sizes_.stride, static_cast<std::size_t>((length + 31) / 32 * 32));
    }
  }
  if (block > 0)
    sizes_.heat_stride = std::max(sizes_.heat_stride, static_cast<std::size_t>((length / block + 32) / 32 * 32));
}

void PassTables::place_made() {
  const std::int64_t of_list =
      (sizes_.capacity + kernels::kPageTokens - 1) / kernels::kPageTokens * kernels::kPageTokens;
  for (PassEntry& entry : entries_) {
    if (entry.dense || entry.first_made < 0) continue;
    entry.first_made_row = sizes_.made_rows;
    entry.made_of_head = entry.made_lists * of_list;
    sizes_.made_rows += entry.rows.program->shape().kv_heads * entry.made_of_head;
  }
}

void PassTables::layer_of(const RowGroup& group, int layer, GroupLayer& to) const {
  to.scores.clear();
  to.searches.clear();
  to.choices.clear();
  to.unions.clear();
  to.ranks.clear();
  to.union_queries.clear();
  to.united.clear();
  to.trees.clear();
  to.units.clear();
  to.gates.clear();
  to.made.clear();
  to.cached_reads.clear();
  to.heats.clear();
  to.audits.clear();
  to.reads.clear();
  for (std::size_t i = group.first_entry; i < group.first_entry + group.entries; ++i) {
    const PassEntry& entry = entries_[i];
    const LayerProgram& program = entry.rows.program->layer(layer);
    for (int row = 0; row < entry.rows.rows; ++row) add_reads(entry, layer, to.reads);
    const int row = entry.rows.first_row - group.row;
    if (!entry.dense) add_selects(entry, layer, row, to);
    if (entry.first_made >= 0) add_made(entry, layer, row, to);
    const bool heats = entry.first_heat >= 0 && program.heats && entry.rows.decodes() && entry.rows.program->feeds();
    for (int head = 0; head < static_cast<int>(program.heads.size()) && heats; ++head) {
      // A stream's window is not what heat speaks of.
      if (!entry.dense && program.heads[static_cast<std::size_t>(head)].reads == HeadOp::Reads::window) continue;
      to.heats.push_back({row, head, entry.heat_of(layer), entry.rows.state->heat.block()});
    }
    for (int head = 0; head < static_cast<int>(program.heads.size()) && entry.rows.audit && !entry.dense; ++head) {
      const HeadOp::Reads reads = program.heads[static_cast<std::size_t>(head)].reads;
      if (reads != HeadOp::Reads::everything) to.audits.push_back({row, head});
    }
  }
  defer_sets(static_cast<std::size_t>(entries_.front().rows.program->shape().kv_heads), to);
  // Behind it, for a set that is made late reads no scores of others.
  for (const kernels::cuda::HeatRow& heat : to.heats) {
    to.reads[static_cast<std::size_t>(heat.row) * entries_.front().rows.program->shape().kv_heads +
             static_cast<std::size_t>(heat.head)]
        .scores = 1;
  }
  if (!to.made.empty()) read_made(entries().subspan(group.first_entry, group.entries), group.row, layer, to);
}

}  // namespace glimpse::attention::cuda
