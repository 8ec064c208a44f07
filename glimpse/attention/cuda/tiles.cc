#include "glimpse/attention/cuda/tiles.h"

#include <algorithm>

#include "glimpse/attention/choose.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {
namespace {

/// Memory for what rows gave to slots: more tiles choose a batch at a time.
constexpr std::size_t kMostSums = std::size_t{32} << 20;  // floats

/// True where a tile that begins there reads all that its set could have.
bool covers(const SequenceRows& rows, const plan::Selector& selector, std::int64_t start) {
  return plan::budget_tokens(selector.budget, start) >= start || start < rows.program->min_context();
}

/// What a tile that begins at `start` chooses from what lies before it.
kernels::Choice choice_before(const plan::Selector& selector, std::int64_t start) {
  const std::int64_t block = selector.block;
  const std::int64_t units = (start + block - 1) / block;
  const std::int64_t local = plan::window_tokens(selector, start);
  const std::int64_t sink = std::min(units, (selector.sink + block - 1) / block);
  const std::int64_t tail = std::max(sink, local == 0 ? units : (start - std::min(start, local)) / block);
  const std::int64_t allowed = plan::budget_tokens(selector.budget, start) / block;
  kernels::Choice choice;
  choice.block = selector.block;
  choice.head_units = static_cast<std::int32_t>(sink);
  choice.tail_units = static_cast<std::int32_t>(tail);
  const std::int64_t forced = sink + (selector.counts_local ? units - tail : 0);
  choice.wanted = static_cast<std::int32_t>(std::max<std::int64_t>(0, allowed - forced));
  return choice;
}

}  // namespace

kernels::PromptRows Tiles::piece(const Prompt& prompt, int tile) const {
  const int first = tile * prompt.tile;
  return {prompt.all.sequence, prompt.all.row + first, std::min(prompt.tile, prompt.all.rows - first),
          prompt.all.behind - first};
}

void Tiles::begin(const PassTables& tables, int heads, kernels::cuda::Staging& staging) {
  staging_ = &staging;
  prompts_.clear();
  sets_ = 0;
  capacity_ = 0;
  stride_ = most_tiles_ = 0;
  std::int64_t most = 0;
  for (const kernels::PromptRows& all : tables.prompts()) {
    const PassEntry& entry = tables.entries()[size(all.sequence)];
    if (!reads_tiles(entry.rows)) continue;
    Prompt& prompt = prompts_.emplace_back();
    prompt.rows = entry.rows;
    prompt.all = all;
    prompt.tile = entry.rows.program->tile_tokens();
    prompt.tiles = tiles_of(entry.rows);
    most = std::max(most, entry.tokens);
    most_tiles_ = std::max(most_tiles_, size(prompt.tiles));
    place_sets(prompt);
  }
  if (!any()) return;
  const std::size_t kv_heads = size(cache_.shape().kv_heads);
  stride_ = size(length_step(most));
  batch_ = static_cast<int>(
      std::clamp(kMostSums / (stride_ * kv_heads * kernels::cuda::kTileSumParts), std::size_t{1}, most_tiles_));
  for (Prompt& prompt : prompts_) {
    std::vector<kernels::PromptRows> pieces;
    for (int tile = 0; tile < prompt.tiles; ++tile) pieces.push_back(piece(prompt, tile));
    prompt.pieces = staging.add(pieces);
    for (int layer = 0; layer < cache_.shape().layers; ++layer) add_layer(prompt, layer);
  }
  make_space(tables.rows(), heads);
}

/// Sets of a slot lie where those of another one did that no later layer reads.
void Tiles::place_sets(Prompt& prompt) {
  const Program& program = *prompt.rows.program;
  const int layers = program.shape().layers, kv_heads = program.shape().kv_heads;
  const auto at = [&](plan::SlotId slot) { return size(slot.layer) * size(kv_heads) + size(slot.head); };
  prompt.places.assign(size(layers) * size(kv_heads), -1);
  std::vector<int> last(prompt.places.size(), -1);  // layer that reads a slot
  for (int layer = 0; layer < layers; ++layer) {
    for (const HeadOp& op : program.layer(layer).heads) {
      if (op.reads == HeadOp::Reads::set) last[at(op.set)] = layer;
    }
  }
  std::vector<std::size_t> holders;  // of each place, the slot
  const std::int64_t tokens = prompt.rows.position + prompt.rows.rows;
  for (int layer = 0; layer < layers; ++layer) {
    for (const SelectOp& select : program.layer(layer).selects) {
      const std::size_t slot = at(select.writes);
      if (last[slot] < layer) continue;  // nobody reads it
      auto found = std::find_if(holders.begin(), holders.end(), [&](std::size_t held) { return last[held] < layer; });
      if (found == holders.end()) found = holders.insert(found, slot);
      *found = slot;
      prompt.places[slot] = static_cast<int>(found - holders.begin()) * prompt.tiles;
      capacity_ = std::max(capacity_, static_cast<std::int32_t>(select.capacity(length_step(tokens))));
    }
  }
  prompt.first_set = sets_;
  sets_ += static_cast<int>(holders.size()) * prompt.tiles;
}

kernels::cuda::TileRead Tiles::read_of(const Prompt& prompt, int layer, int head, int tile) const {
  const HeadOp& op = prompt.rows.program->head(layer, head);
  const std::int64_t start = start_of(prompt.rows, tile);
  kernels::cuda::TileRead read;
  if (op.reads == HeadOp::Reads::window) {
    const std::int64_t local = plan::window_tokens(*op.window, start);
    if (op.window->sink + local >= start || start < prompt.rows.program->min_context()) return read;
    // What was forgotten lay between sink and window, in whole pages: a token behind it has a lower slot.
    const std::int64_t gone =
        prompt.rows.position + prompt.rows.rows - cache_.view(prompt.rows.sequence, layer, head).slots;
    read.sink = op.window->sink;
    read.local = static_cast<std::int32_t>(std::max(start - local, op.window->sink + gone) - gone);
  } else if (op.reads == HeadOp::Reads::set) {
    const SelectOp& select = prompt.rows.program->select(op.set.layer, op.set.head);
    if (covers(prompt.rows, *select.selector, start)) return read;
    const int place = prompt.places[size(op.set.layer) * size(cache_.shape().kv_heads) + size(op.set.head)];
    read.set = prompt.first_set + place + tile;
  }
  return read;
}

void Tiles::add_layer(Prompt& prompt, int layer) {
  Layer& to = prompt.layers.emplace_back();
  std::vector<kernels::cuda::TileRead> reads;
  for (int tile = 0; tile < prompt.tiles; ++tile) {
    for (int head = 0; head < cache_.shape().kv_heads; ++head) {
      reads.push_back(read_of(prompt, layer, head, tile));
      to.sparse |= reads.back().set >= 0 || reads.back().local > 0;
    }
  }
  to.reads = staging_->add(reads);
  std::vector<const plan::Selector*> selectors;
  for (const SelectOp& select : prompt.rows.program->layer(layer).selects) {
    const bool known = std::find(selectors.begin(), selectors.end(), select.selector) != selectors.end();
    if (!known) selectors.push_back(select.selector);
  }
  for (const plan::Selector* selector : selectors) add_choosing(prompt, layer, *selector);
}

void Tiles::add_choosing(Prompt& prompt, int layer, const plan::Selector& selector) {
  const plan::Term& term = selector.terms.front();
  const std::size_t kv_heads = size(cache_.shape().kv_heads);
  Choosing choosing;
  choosing.by_mean_query = pools_queries(term);
  choosing.softmax = choosing.by_mean_query && term.source == plan::Source::probability;
  const bool few = prompt.tile * prompt.rows.program->shape().group() <= kernels::cuda::kTileSumRows;
  if (!choosing.by_mean_query && few && kernels::cuda::has_tile_sums(stream_, cache_.shape().format.dim)) {
    choosing.parts = kernels::cuda::kTileSumParts;
  }
  std::vector<kernels::PromptRows> pieces;
  std::vector<std::int32_t> sequence, before, within;
  std::vector<kernels::RowHead> scores;
  std::vector<kernels::Choice> choices;
  for (int tile = 0; tile < prompt.tiles; ++tile) {
    const std::int64_t start = start_of(prompt.rows, tile);
    if (covers(prompt.rows, selector, start)) continue;
    const auto row = static_cast<std::int32_t>(choosing.tiles % batch_);
    kernels::Choice choice = choice_before(selector, start);
    choice.row = row;
    choice.pooling = choosing.softmax ? kernels::Pooling::mean_probability : kernels::Pooling::mean_score;
    choosing.each = choosing.heads = 0;
    for (const SelectOp& select : prompt.rows.program->layer(layer).selects) {
      const int place = prompt.places[size(select.writes.layer) * kv_heads + size(select.writes.head)];
      if (select.selector != &selector || place < 0) continue;
      choice.head = select.first_head;
      choice.heads = select.of_layer() ? select.heads : 1;
      choice.set = prompt.first_set + place + tile;
      choices.push_back(choice);
      ++choosing.each;
      for (int head = select.first_head; head < select.first_head + select.heads; ++head, ++choosing.heads) {
        scores.push_back({row, head});
      }
    }
    if (choosing.each == 0) return;  // nobody reads what they would choose
    pieces.push_back(piece(prompt, tile));
    sequence.push_back(prompt.all.sequence);
    before.push_back(pieces.back().behind + 1);
    within.push_back(pieces.back().behind - pieces.back().rows + 1);
    ++choosing.tiles;
  }
  if (choosing.tiles == 0) return;
  choosing.pieces = staging_->add(pieces);
  choosing.sequence = staging_->add(sequence);
  choosing.before = staging_->add(before);
  choosing.within = staging_->add(within);
  choosing.scores = staging_->add(scores);
  choosing.choices = staging_->add(choices);
  prompt.layers.back().choosing.push_back(choosing);
}

void Tiles::make_space(int rows, int heads) {
  const std::size_t kv_heads = size(cache_.shape().kv_heads);
  grow(lse_, stream_, size(rows) * size(heads));
  grow(slots_, stream_, size(sets_) * size(capacity_));
  grow(counts_, stream_, size(sets_));
  if (sets_ == 0) return;  // windows alone
  const std::size_t sums = size(batch_) * kv_heads * size(kernels::cuda::kTileSumParts);
  grow(sums_, stream_, sums * stride_);
  grow(tile_lse_, stream_, sums);
  grow(means_, stream_, most_tiles_ * kv_heads * size(cache_.shape().format.dim));
}

/// Sums of rows alone are made where no head of the layer has forgotten anything.
bool Tiles::has_row_sums(int layer, kv::SequenceId sequence) const {
  if (!kernels::cuda::has_tile_sums(stream_, cache_.shape().format.dim)) return false;
  for (int head = 0; head < cache_.shape().kv_heads; ++head) {
    if (cache_.view(sequence, layer, head).positions != nullptr) return false;
  }
  return true;
}

bool Tiles::run(int layer, const kernels::PromptRows& prompt, const TileCall& call,
                kernels::Operations<kernels::Place::device>& operations) {
  const auto found = std::find_if(prompts_.begin(), prompts_.end(),
                                  [&](const Prompt& one) { return one.all.sequence == prompt.sequence; });
  if (found == prompts_.end()) return false;
  const Layer& of = found->layers[size(layer)];
  const bool sums = std::any_of(of.choosing.begin(), of.choosing.end(),
                                [](const Choosing& choosing) { return !choosing.by_mean_query; });
  if (of.sparse && sums && has_row_sums(layer, found->rows.sequence)) {
    kernels::cuda::sum_rows(stream_, {call.cache, prompt, call.q, call.group, call.scale, call.lse});
  } else if (!of.sparse || sums) {
    operations.prefill({call.cache, prompt, call.q, call.group, call.scale, call.out, call.lse});
  }
  for (const Choosing& choosing : of.choosing) choose(choosing, call, operations);
  if (!of.sparse) return true;
  kernels::cuda::attend_tiles(stream_, {.cache = call.cache,
                                        .tiles = staging_->at<kernels::PromptRows>(found->pieces),
                                        .count = found->tiles,
                                        .rows = found->tile,
                                        .reads = staging_->at<kernels::cuda::TileRead>(of.reads),
                                        .sets = {slots_.pointer(), counts_.pointer(), capacity_, sets_},
                                        .q = call.q,
                                        .group = call.group,
                                        .scale = call.scale,
                                        .out = call.out});
  return true;
}

void Tiles::choose(const Choosing& choosing, const TileCall& call,
                   kernels::Operations<kernels::Place::device>& operations) {
  const kernels::cuda::Array<float>& sums = sums_;
  const auto* const pieces = staging_->at<kernels::PromptRows>(choosing.pieces).raw();
  const auto* const sequence = staging_->at<std::int32_t>(choosing.sequence).raw();
  const auto* const before = staging_->at<std::int32_t>(choosing.before).raw();
  const auto* const within = staging_->at<std::int32_t>(choosing.within).raw();
  const std::size_t width = size(cache_.shape().kv_heads) * size(cache_.shape().format.dim);
  if (choosing.by_mean_query) {
    kernels::cuda::mean_queries(stream_, {pieces, choosing.tiles, call.q, cache_.shape().kv_heads, call.group,
                                          cache_.shape().format.dim, means_.pointer()});
  }
  for (int first = 0; first < choosing.tiles; first += batch_) {
    const int count = std::min(batch_, choosing.tiles - first);
    const kernels::ScoreTable<kernels::Place::device> table{sums.pointer(), tile_lse_.pointer(), stride_};
    if (choosing.by_mean_query) {
      operations.score({call.cache,
                        {sequence + first, (choosing.softmax ? within : before) + first, count},
                        means_.pointer().raw() + size(first) * width,
                        1,
                        call.scale,
                        staging_->at<kernels::RowHead>(choosing.scores).raw() + size(first) * size(choosing.heads),
                        count * choosing.heads,
                        table});
    } else if (choosing.parts > 1) {
      kernels::cuda::sum_tiles(stream_, {call.cache, pieces + first, count, call.q, call.lse, call.group, call.scale,
                                         sums.pointer(), stride_});
    } else {
      operations.column_sums(
          {call.cache, pieces + first, count, call.q, call.lse, call.group, call.scale, stride_, sums.pointer()});
    }
    operations.select({call.cache,
                       {sequence + first, before + first, count},
                       choosing.parts,
                       table,
                       staging_->at<kernels::Choice>(choosing.choices).raw() + size(first) * size(choosing.each),
                       count * choosing.each,
                       {slots_.pointer(), counts_.pointer(), capacity_, sets_}});
  }
}

}  // namespace glimpse::attention::cuda
