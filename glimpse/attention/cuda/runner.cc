#include "glimpse/attention/cuda/runner.h"

#include <algorithm>
#include <cmath>

#include "glimpse/attention/forget.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"

namespace glimpse::attention::cuda {
namespace {

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

/// Room that need not grow with every token.
std::size_t roomy(std::size_t wanted) {
  return wanted + wanted / 4 + 256;
}

template <class T>
bool grow(kernels::cuda::Array<T>& array, kernels::cuda::Stream& stream, std::size_t wanted) {
  if (wanted <= array.size()) return false;
  stream.synchronize();  // what is queued may use the old one
  array = {};
  array = kernels::cuda::Array<T>(stream, roomy(wanted));
  return true;
}

/// Corrected keys are not those that an index of the CPU was made of: one that a session brought is built again there.
void forget_indices(const SequenceRows& rows) {
  SequenceState& state = *rows.state;
  for (int layer = 0; layer < rows.program->shape().layers; ++layer) {
    for (int head = 0; head < rows.program->shape().kv_heads; ++head) {
      auto& index = state.indices[state.head(layer, head)];
      if (index == nullptr || index->covered() == 0) continue;
      if (tree_of(rows, layer, head) != nullptr || units_of(rows, layer, head) != nullptr) continue;
      index = kv::make_index(*rows.program->select(layer, head).selector, rows.program->shape().head_dim);
    }
  }
}

}  // namespace

Runner::Runner(const RunnerShape& shape, kv::Cache& cache, kernels::cuda::Stream& stream)
    : shape_(shape),
      cache_(cache),
      stream_(stream),
      operations_(kernels::cuda::make_operations(stream)),
      pages_(cache, stream),
      summaries_(cache, stream),
      feedback_(cache, stream),
      heats_(cache, stream),
      builder_(cache, stream, shape.threads),
      trees_(cache, stream, builder_),
      units_(cache, stream, builder_),
      low_rank_(cache, stream, builder_, shape.rotation),
      made_rows_(cache, stream),
      mean_tokens_(cache, stream),
      tiles_(cache, stream),
      audits_(cache, stream),
      records_(cache, stream),
      host_sets_(stream),
      tier_(cache) {}

void Runner::begin(std::span<const SequenceRows> batch, kernels::cuda::Staging& staging) {
  began_ = false;
  summaries_.begin(batch);
  give_slots(cache_, batch, marks_);
  began_ = true;
  staging_ = &staging;
  lengths_.clear();
  pages_.begin();
  trees_.begin();
  units_.begin();
  low_rank_.begin();
  mean_tokens_.begin();
  for (const SequenceRows& rows : batch) {
    check(rows.program->shape().head_dim == shape_.head_dim, "a program is made for the model's head dimension");
    if (rows.decodes()) forget(cache_, rows, forget_);
    lengths_.push_back(cache_.length(rows.sequence));
    pages_.follow(rows);
    summaries_.follow(rows);
    trees_.follow(rows);
    units_.follow(rows);
    low_rank_.follow(rows);
    mean_tokens_.follow(rows);
  }
  tier_.begin(batch);
  tables_.make(batch, lengths_, tier_.waits());
  feedback_.begin(batch, lengths_, shape_.heads);
  audits_.begin(batch, tables_.rows(), shape_.heads);
  records_.begin(tables_, static_cast<bool>(observer), shape_.heads * shape_.head_dim);
  host_sets_.begin(tables_, records_.any() || tier_.any());

  // [layers, sequences, kv_heads]
  const std::size_t heads = size(shape_.kv_heads);
  views_.resize(size(shape_.layers) * batch.size() * heads);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    of_sequence_.clear();
    pages_.append_views(batch[i], of_sequence_);
    for (std::size_t layer = 0; layer < size(shape_.layers); ++layer) {
      std::copy_n(of_sequence_.begin() + static_cast<std::ptrdiff_t>(layer * heads), heads,
                  views_.begin() + static_cast<std::ptrdiff_t>((layer * batch.size() + i) * heads));
    }
  }
  heats_.begin(tables_, lengths_, shape_.heads, staging);
  tiles_.begin(tables_, shape_.heads, staging);
  views_place_ = staging.add(views_);
  add_made_views();
  const kv::WaitingPages waiting = cache_.waiting();
  waiting_place_ = staging.add(waiting.pieces);
  sequence_place_ = staging.add(tables_.sequence_of_row());
  behind_place_ = staging.add(tables_.behind());
  pieces_place_ = staging.add(feedback_.pieces());
  watched_place_ = staging.add(records_.rows());

  make_space();
  mean_tokens_.make_space(tables_.rows(), shape_.heads);
  angles_place_ = staging.add(units_.angles());
  key_.clear();
  key_.insert(key_.end(), {tables_.rows(),
                           static_cast<std::int64_t>(batch.size()),
                           tables_.capacity(),
                           static_cast<std::int64_t>(tables_.stride()),
                           tables_.most_blocks(),
                           summaries_.most(),
                           static_cast<std::int64_t>(feedback_.pieces().size()),
                           static_cast<std::int64_t>(feedback_.stride()),
                           feedback_.moves(),
                           audits_.any(),
                           audits_.moves(),
                           static_cast<std::int64_t>(records_.rows().size()),
                           records_.moves(),
                           moves_,
                           trees_.most(),
                           units_.most(),
                           low_rank_.moves(),
                           mean_tokens_.any(),
                           mean_tokens_.moves(),
                           made_rows_.moves(),
                           host_sets_.any(),
                           host_sets_.moves(),
                           static_cast<std::int64_t>(waiting.pieces.size())});
  heats_.add_to(key_);
  add_ranges();
  places_.clear();
  for (const RowGroup& group : tables_.groups()) {
    for (int layer = 0; layer < shape_.layers; ++layer) {
      tables_.layer_of(group, layer, group_layer_);
      LayerPlace place;
      place.scores = staging.add(group_layer_.scores);
      place.searches = staging.add(group_layer_.searches);
      point_to_indices(batch, group, layer);
      place.trees = staging.add(group_layer_.trees);
      place.tree_count = static_cast<int>(group_layer_.trees.size());
      place.units = staging.add(group_layer_.units);
      place.unit_count = static_cast<int>(group_layer_.units.size());
      place.gates = staging.add(group_layer_.gates);
      place.gate_count = static_cast<int>(group_layer_.gates.size());
      place.made = staging.add(group_layer_.made);
      place.made_count = static_cast<int>(group_layer_.made.size());
      place.choices = staging.add(group_layer_.choices);
      place.reads = staging.add(group_layer_.reads);
      place.cached_reads = staging.add(group_layer_.cached_reads);
      mean_tokens_.add(tables_, group, layer, group_layer_.means);
      place.means = staging.add(group_layer_.means);
      place.mean_count = static_cast<int>(group_layer_.means.size());
      place.audits = staging.add(group_layer_.audits);
      place.score_count = static_cast<int>(group_layer_.scores.size());
      place.search_count = static_cast<int>(group_layer_.searches.size());
      place.choice_count = static_cast<int>(group_layer_.choices.size());
      place.weighs_means = std::any_of(
          group_layer_.choices.begin(), group_layer_.choices.end(),
          [](const kernels::Choice& choice) { return choice.pooling == kernels::Pooling::probability_of_mean; });
      place.late = group_layer_.late;
      place.audit_count = static_cast<int>(group_layer_.audits.size());
      place.parts = heats_.add(group_layer_);
      places_.push_back(place);
      key_.insert(key_.end(),
                  {group.row, group.rows, place.score_count, place.search_count, place.tree_count, place.unit_count,
                   place.gate_count, place.made_count, place.choice_count, place.audit_count, place.parts.union_count,
                   place.parts.rank_count, place.parts.heat_count, place.weighs_means, place.mean_count, place.late});
    }
  }
  if (!tables_.prompts().empty()) key_.clear();
  // Last, so that all else lies where it lay.
  writes_place_ = staging.add(pages_.writes());
  tree_writes_place_ = staging.add(trees_.writes());
  unit_writes_place_ = staging.add(units_.writes());
}

/// Says which trees and units a layer of a group searches, by which gates.
void Runner::point_to_indices(std::span<const SequenceRows> batch, const RowGroup& group, int layer) {
  const auto rows_of = [&](int row) -> const SequenceRows& {
    return batch[size(tables_.sequence_of_row()[size(group.row + row)])];
  };
  for (kernels::cuda::TreeSearch& search : group_layer_.trees) {
    search.tree = trees_.tree(rows_of(search.row), layer, search.head);
  }
  for (kernels::cuda::UnitSearch& search : group_layer_.units) units_.point(rows_of(search.row), layer, search);
  for (kernels::cuda::GateQuery& gate : group_layer_.gates) {
    const int row = gate.row;
    gate = units_.gate_query(rows_of(row), layer, gate.head);
    gate.row = row;
  }
  for (kernels::cuda::MadeSet& made : group_layer_.made) {
    units_.point(rows_of(made.row), layer, made);
    low_rank_.point(rows_of(made.row), layer, made);
  }
}

/// Where each layer's pages lie whose bounds it makes.
void Runner::add_ranges() {
  range_places_.clear();
  for (int layer = 0; layer < shape_.layers; ++layer) {
    summaries_.ranges_of(layer, ranges_);
    range_places_.push_back({staging_->add(ranges_), static_cast<int>(ranges_.size())});
    if (summaries_.most() > 0) key_.push_back(range_places_.back().count);
  }
}

void Runner::make_space() {
  bool moved = false;
  if (tables_.stride() > 0) {
    int most = 0;
    for (const RowGroup& group : tables_.groups()) most = std::max(most, group.rows);
    moved |= grow(scores_, stream_, size(most) * size(shape_.heads) * tables_.stride());
    moved |= grow(lse_, stream_, size(most) * size(shape_.heads));
    if (!units_.angles().empty()) {
      moved |= grow(gate_queries_, stream_, size(most) * size(shape_.kv_heads) * kernels::cuda::kMostGateDim);
    }
  }
  const std::size_t sets = size(tables_.sets());
  moved |= grow(sets_, stream_, sets * size(tables_.capacity()));
  moved |= grow(counts_, stream_, 2 * sets);  // and of trees the clusters that were read
  if (2 * sets * sizeof(std::int32_t) > host_counts_.size()) {
    stream_.synchronize();
    host_counts_ = kernels::cuda::Pinned(stream_, roomy(2 * sets) * sizeof(std::int32_t));
    moved = true;
  }
  if (moved) ++moves_;
}

void Runner::prepare() {
  kernels::cuda::write(stream_, {.writes = staging_->at<kernels::cuda::Write>(writes_place_),
                                 .count = static_cast<int>(pages_.writes().size())});
  pages_.written();
  kernels::cuda::write(stream_, {.writes = staging_->at<kernels::cuda::Write>(tree_writes_place_),
                                 .count = static_cast<int>(trees_.writes().size())});
  trees_.written();
  kernels::cuda::write(stream_, {.writes = staging_->at<kernels::cuda::Write>(unit_writes_place_),
                                 .count = static_cast<int>(units_.writes().size())});
  units_.written();
}

/// The views that attention reads where rows are put together: their own pages in place of the cache's.
void Runner::add_made_views() {
  made_rows_.make_space(tables_);
  if (!made_rows_.any()) return;
  const std::size_t heads = size(shape_.kv_heads), sequences = tables_.entries().size();
  for (std::size_t i = 0; i < sequences; ++i) {
    const PassEntry& entry = tables_.entries()[i];
    if (entry.first_made < 0) continue;
    for (int layer = 0; layer < shape_.layers; ++layer) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        if (!PassTables::makes_rows(entry, layer, head)) continue;
        views_[(size(layer) * sequences + i) * heads + size(head)] = made_rows_.view(entry, head);
      }
    }
  }
  made_views_place_ = staging_->add(views_);
}

kernels::KvTable<kernels::Place::device> Runner::cache_of(int layer) const {
  return table_at(views_place_, layer);
}

kernels::KvTable<kernels::Place::device> Runner::table_at(std::size_t place, int layer) const {
  const std::size_t sequences = tables_.entries().size();
  const kernels::HeadView* views = staging_->at<kernels::HeadView>(place).raw();
  return {cache_.shape().format, views + size(layer) * sequences * size(shape_.kv_heads), static_cast<int>(sequences),
          shape_.kv_heads};
}

Runner::OwnRows Runner::own_rows(int layer) const {
  return {cache_of(layer),
          {staging_->at<std::int32_t>(sequence_place_).raw(), staging_->at<std::int32_t>(behind_place_).raw(),
           tables_.rows()}};
}

bool Runner::layer(int layer, const LayerRows& rows) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
  const int group_heads = shape_.heads / shape_.kv_heads;
  const kernels::KvTable<Place::device> cache = cache_of(layer);
  const std::int32_t* const sequence = staging_->at<std::int32_t>(sequence_place_).raw();
  const std::int32_t* const behind = staging_->at<std::int32_t>(behind_place_).raw();
  float* lse = audits_.any() ? audits_.read_lse(layer) : feedback_.any() ? feedback_.lse() : heats_.lse();
  if (lse == nullptr) lse = mean_tokens_.lse();
  if (lse == nullptr) lse = tiles_.lse();
  if (layer == 0) heats_.start();
  if (const RangePlace& ranges = range_places_[size(layer)]; ranges.count > 0) {
    operations_->summarise(
        {cache, staging_->at<kernels::PageRange>(ranges.at), ranges.count, summaries_.most(), summaries_.table()});
  }
  for (const kernels::PromptRows& prompt : tables_.prompts()) {
    if (tiles_.run(layer, prompt, {cache, rows.q, group_heads, scale, lse, rows.out}, *operations_)) continue;
    operations_->prefill({cache, prompt, rows.q, group_heads, scale, rows.out, lse});
  }
  // What is added to attention, and rows of prompts, come as floats alone.
  const bool narrows = rows.narrow && tables_.prompts().empty() && !mean_tokens_.any();
  GroupCall call{.cache = cache, .group = group_heads, .scale = scale};
  call.scores = {scores_.pointer(), lse_.pointer(), tables_.stride()};
  call.sets = {sets_.pointer(), counts_.pointer(), tables_.capacity(), tables_.sets()};
  for (std::size_t g = 0; g < tables_.groups().size(); ++g) {
    const RowGroup& group = tables_.groups()[g];
    const LayerPlace& place = places_[g * size(shape_.layers) + size(layer)];
    const std::size_t first_query = size(group.row) * size(shape_.heads);
    const std::size_t at = first_query * size(shape_.head_dim);
    call.rows = {sequence + group.row, behind + group.row, group.rows};
    call.q = rows.q.raw() + at;
    call.reads = staging_->at<kernels::Read>(place.reads);
    call.out = rows.out.raw() + at;
    if (narrows) call.narrow = rows.narrow.raw() + at;
    call.lse = lse == nullptr ? nullptr : lse + first_query;
    run_group(call, place, layer, place.audit_count > 0 ? audits_.all_lse(layer) + first_query : nullptr);
  }
  call.rows = {sequence, behind, tables_.rows()};
  call.q = rows.q;
  call.lse = lse;
  heats_.observe(layer, call, *operations_);
  if (records_.any()) {
    kernels::cuda::take_rows(stream_, {rows.q, staging_->at<std::int32_t>(watched_place_), records_.queries(layer),
                                       static_cast<int>(records_.rows().size()), shape_.heads * shape_.head_dim});
  }
  if (feedback_.any()) {
    operations_->column_sums({cache, staging_->at<kernels::PromptRows>(pieces_place_),
                              static_cast<int>(feedback_.pieces().size()), rows.q, lse, group_heads, scale,
                              feedback_.stride(), feedback_.sums(layer)});
  }
  return narrows;
}

void Runner::make_sets(const GroupCall& call, const LayerPlace& place) {
  if (place.score_count > 0) {
    operations_->score({call.cache, call.rows, call.q, call.group, call.scale,
                        staging_->at<kernels::RowHead>(place.scores), place.score_count, call.scores});
  }
  if (place.search_count > 0) {
    operations_->search({call.cache, call.rows, call.q, call.group, call.scale, summaries_.table(),
                         staging_->at<kernels::Search>(place.searches), place.search_count, tables_.most_blocks(),
                         call.scores});
  }
  if (place.tree_count > 0) {
    kernels::cuda::search_trees(stream_, {.cache = call.cache,
                                          .rows = call.rows,
                                          .q = call.q,
                                          .group = call.group,
                                          .scale = call.scale,
                                          .searches = staging_->at<kernels::cuda::TreeSearch>(place.trees),
                                          .count = place.tree_count,
                                          .most = trees_.most(),
                                          .sets = call.sets,
                                          .opened = counts_.pointer().raw() + tables_.sets()});
  }
  if (place.unit_count > 0) {
    const kernels::RotationPairs pairs = units_.pairs();
    kernels::cuda::gate_queries(stream_, {.q = call.q,
                                          .kv_heads = shape_.kv_heads,
                                          .group = call.group,
                                          .head_dim = shape_.head_dim,
                                          .angles = staging_->at<float>(angles_place_),
                                          .turned = pairs.dims,
                                          .neox = pairs.neox,
                                          .gates = staging_->at<kernels::cuda::GateQuery>(place.gates),
                                          .count = place.gate_count,
                                          .out = gate_queries_.pointer()});
    kernels::cuda::search_units(stream_, {.cache = call.cache,
                                          .q = call.q,
                                          .group = call.group,
                                          .searches = staging_->at<kernels::cuda::UnitSearch>(place.units),
                                          .count = place.unit_count,
                                          .most = units_.most(),
                                          .gate_queries = gate_queries_.constant(),
                                          .out = call.scores});
  }
  if (place.choice_count > 0) {
    operations_->select({call.cache, call.rows, call.group, call.scores, staging_->at<kernels::Choice>(place.choices),
                         place.choice_count, call.sets, place.weighs_means});
  }
  heats_.choose(call, place.parts, *operations_);
}

/// Attention where rows are put together. What sets capture is a matter of the keys that were given: where somebody
/// asks, those are read too, and then nothing waits.
void Runner::attend_made(const GroupCall& call, const LayerPlace& place, int layer) {
  const kernels::KvTable<Place::device> made = table_at(made_views_place_, layer);
  const kernels::RotationPairs pairs = low_rank_.pairs();
  kernels::cuda::make_rows(stream_, {.cache = call.cache,
                                     .rows = call.rows,
                                     .sets = call.sets,
                                     .made = made,
                                     .of = staging_->at<kernels::cuda::MadeSet>(place.made),
                                     .count = place.made_count,
                                     .most = tables_.capacity(),
                                     .angles = low_rank_.angles(),
                                     .turned = pairs.dims,
                                     .neox = pairs.neox,
                                     .pieces = staging_->at<std::byte*>(waiting_place_),
                                     .piece_slots = cache_.waiting().piece_slots});
  if (call.lse != nullptr) {
    operations_->attend({call.cache, call.rows, call.q, call.group, call.scale,
                         staging_->at<kernels::Read>(place.cached_reads), call.sets, call.out, call.lse});
  }
  operations_->attend(
      {made, call.rows, call.q, call.group, call.scale, call.reads, call.sets, call.out, nullptr, call.narrow});
}

/// What a layer does for a group of rows, behind the appending.
void Runner::run_group(const GroupCall& call, const LayerPlace& place, int layer, float* audit_lse) {
  if (!place.late) make_sets(call, place);
  if (place.made_count > 0) {
    attend_made(call, place, layer);
  } else {
    operations_->attend({call.cache, call.rows, call.q, call.group, call.scale, call.reads, call.sets, call.out,
                         call.lse, call.narrow, call.scores});
  }
  if (place.late) make_sets(call, place);
  kernels::cuda::add_mean_tokens(
      stream_, {call.cache, call.rows, call.q, call.group, call.scale,
                staging_->at<kernels::cuda::MeanToken>(place.means), place.mean_count, call.lse, call.out});
  heats_.feed(call, place.parts);
  if (audit_lse == nullptr) return;
  operations_->score({call.cache,
                      call.rows,
                      call.q,
                      call.group,
                      call.scale,
                      staging_->at<kernels::RowHead>(place.audits),
                      place.audit_count,
                      {call.scores.scores, audit_lse, call.scores.stride}});
}

void Runner::finish() {
  feedback_.finish();
  heats_.finish();
  audits_.finish();
  records_.finish();
  host_sets_.finish(sets_.memory());
  if (tables_.sets() > 0) {
    counts_.memory().copy_out_later(0, host_counts_, 2 * size(tables_.sets()) * sizeof(std::int32_t));
  }
}

/// False where the tier has no room, which ends the pass for the entry.
bool Runner::move_pages(const PassEntry& entry, ReadCounters& counters) {
  try {
    tier_.end(tables_, entry, host_sets_, set_counts(), pages_, counters);
    return true;
  } catch (const UserError&) {
    failures_.resize(tables_.entries().size());
    failures_[counters_.size() - 1] = std::current_exception();
    return false;
  }
}

std::span<const ReadCounters> Runner::end() {
  summaries_.end();
  records_.tell(tables_, host_sets_, set_counts(), audits_, observer);
  failures_ = records_.failures();
  feedback_.end();
  heats_.end();
  counters_.clear();
  for (const PassEntry& entry : tables_.entries()) {
    ReadCounters& counters = counters_.emplace_back();
    if (!failures_.empty() && failures_[counters_.size() - 1]) continue;
    SequenceState& state = *entry.rows.state;
    counters.index_build_s += trees_.end(entry.rows) + units_.end(entry.rows) + low_rank_.end(entry.rows);
    mean_tokens_.end(entry.rows);
    if (entry.rows.decodes()) {
      count(counters_.size() - 1, counters);
      if (tier_.any() && !move_pages(entry, counters)) continue;
      audits_.end(entry.rows, counters);
      if (entry.rows.kind != PassKind::draft) ++state.decode_steps;
    } else if (entry.rows.kind == PassKind::verify) {
      counters.add_dense_step(DenseReason::verify);
    } else if (entry.rows.kind == PassKind::prompt && ends_prompt(entry.rows)) {
      state.prompt_tokens = entry.tokens;
    } else if (entry.rows.kind == PassKind::correct) {
      forget_indices(entry.rows);
    }
  }
  began_ = false;
  return counters_;
}

}  // namespace glimpse::attention::cuda
