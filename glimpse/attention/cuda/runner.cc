#include "glimpse/attention/cuda/runner.h"

#include <algorithm>
#include <cmath>

#include "glimpse/attention/cuda/group_run.h"
#include "glimpse/attention/cuda/read_counts.h"
#include "glimpse/attention/forget.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {
namespace {

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

std::int32_t most_rows(std::span<const kernels::PromptRows> pieces) {
  std::int32_t most = 0;
  for (const kernels::PromptRows& piece : pieces) most = std::max(most, piece.rows);
  return most;
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
      widened_(cache, stream),
      mean_tokens_(cache, stream),
      tiles_(cache, stream),
      audits_(cache, stream),
      records_(cache, stream),
      host_sets_(stream),
      tier_(cache),
      tables_(kernels::cuda::prefills_few_rows(stream, cache.shape().format)),
      tables_before_(tables_),
      views_(cache),
      space_(stream),
      layers_({trees_, units_, low_rank_, mean_tokens_, heats_}) {}

/// Sequences have their slots: what holds something of theirs on the device takes them in.
void Runner::follow(std::span<const SequenceRows> batch, std::span<const ProgramFacts* const> facts) {
  lengths_.clear();
  searched_.clear();
  pages_.begin();
  builder_.begin(open_ > 1);
  trees_.begin();
  units_.begin();
  low_rank_.begin();
  mean_tokens_.begin();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const SequenceRows& rows = batch[i];
    check(rows.program->shape().head_dim == shape_.head_dim, "a program is made for the model's head dimension");
    if (rows.decodes()) forget(cache_, rows, forget_);
    lengths_.push_back(cache_.length(rows.sequence));
    pages_.follow(rows);
    summaries_.follow(rows, *facts[i]);
    if (facts[i]->trees) trees_.follow(rows);
    searched_.push_back(facts[i]->trees ? trees_.searched(rows) : nullptr);
    if (facts[i]->units) units_.follow(rows);
    low_rank_.follow(rows);
    if (facts[i]->compensates) mean_tokens_.follow(rows);
  }
  tier_.begin(batch, facts);
}

void Runner::begin(std::span<const SequenceRows> batch, kernels::cuda::Staging& staging) {
  check(open_ == 0 || (open_ == 1 && may_overlap()), "a pass begins while another runs where that one leaves nothing");
  if (open_ > 0) {
    std::swap(tables_, tables_before_);
    std::swap(places_, places_before_);
  }
  if (open_++ == 0) programs_.trim();
  try {
    make(batch, staging);
    check(open_ == 1 || may_overlap(), "a pass that begins while another runs leaves nothing, either");
  } catch (...) {
    drop_last();
    throw;
  }
}

void Runner::drop_last() {
  if (open_ == 0) return;
  if (began_) summaries_.forget();
  if (--open_ == 0) return;
  std::swap(tables_, tables_before_);
  std::swap(places_, places_before_);
  began_ = true;  // the other one
}

bool Runner::leaves_nothing(const Program& program, PassKind kind, std::int64_t tokens) {
  return programs_.of(program).leaves_nothing(program, kind, tokens);
}

/// Of the last pass that began.
bool Runner::may_overlap() const {
  const auto keeps = [](const PassEntry& entry) {
    const bool reads_alone = entry.rows.decodes() || entry.rows.kind == PassKind::verify;
    return !reads_alone || !entry.facts->leaves_nothing(*entry.rows.program, entry.rows.kind, entry.tokens);
  };
  return !feedback_.any() && !audits_.any() && !records_.any() && !host_sets_.any() && !mean_tokens_.any() &&
         !tier_.any() && std::none_of(tables_.entries().begin(), tables_.entries().end(), keeps);
}

void Runner::make(std::span<const SequenceRows> batch, kernels::cuda::Staging& staging) {
  began_ = false;
  const std::span<const ProgramFacts* const> facts = programs_.of(batch);
  summaries_.begin(batch, facts);
  give_slots(cache_, batch, marks_);
  began_ = true;
  staging_ = &staging;
  follow(batch, facts);
  tables_.make(batch, lengths_, tier_.waits(), searched_, facts);
  feedback_.begin(batch, lengths_, shape_.heads);
  audits_.begin(batch, tables_.rows(), shape_.heads);
  records_.begin(tables_, static_cast<bool>(on_head), shape_.heads * shape_.head_dim);
  host_sets_.begin(tables_, records_.any() || tier_.any());
  heats_.begin(tables_, open_ > 1 ? &tables_before_ : nullptr, lengths_, shape_.heads, staging);
  tiles_.begin(tables_, shape_.heads, staging);
  made_rows_.make_space(tables_);
  widened_.make_space(tables_);
  views_.begin(tables_, pages_, staging);
  views_.add(tables_, made_rows_, staging);
  views_.add(tables_, widened_, staging);
  const kv::WaitingPages waiting = cache_.waiting();
  waiting_place_ = staging.add(waiting.pieces);
  sequence_place_ = staging.add(tables_.sequence_of_row());
  behind_place_ = staging.add(tables_.behind());
  pieces_place_ = staging.add(feedback_.pieces());
  verified_place_ = staging.add(tables_.verified());
  watched_place_ = staging.add(records_.rows());
  angles_place_ = staging.add(units_.turns().angles);
  space_.make(tables_, shape_.heads, shape_.kv_heads, !units_.turns().angles.empty());
  mean_tokens_.make_space(tables_.rows(), shape_.heads);
  key_.assign({tables_.rows(),
               static_cast<std::int64_t>(batch.size()),
               tables_.sizes().capacity,
               static_cast<std::int64_t>(tables_.sizes().stride),
               tables_.sizes().most_blocks,
               tables_.sizes().fresh,
               tables_.sizes().longest,
               summaries_.most(),
               static_cast<std::int64_t>(feedback_.pieces().size()),
               static_cast<std::int64_t>(feedback_.stride()),
               feedback_.moves(),
               audits_.any(),
               audits_.moves(),
               static_cast<std::int64_t>(records_.rows().size()),
               records_.moves(),
               space_.moves(),
               trees_.most(),
               units_.most(),
               units_.most_chunks(),
               low_rank_.moves(),
               mean_tokens_.any(),
               mean_tokens_.moves(),
               made_rows_.moves(),
               host_sets_.any(),
               host_sets_.moves(),
               static_cast<std::int64_t>(waiting.pieces.size())});
  heats_.add_to(key_);
  summaries_.stage(shape_.layers, staging, key_);
  layers_.add(tables_, shape_.layers, staging, key_, places_);
  key_.insert(key_.end(), {static_cast<std::int64_t>(tables_.verified().size()), most_rows(tables_.verified())});
  if (!tables_.prompts().empty()) key_.clear();
  // Last, so that all else lies where it lay.
  writes_place_ = staging.add(pages_.writes());
  tree_writes_place_ = staging.add(trees_.writes());
  unit_writes_place_ = staging.add(units_.writes());
}

void Runner::prepare() {
  builder_.queue();
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

Runner::OwnRows Runner::own_rows(int layer) const {
  return {views_.cached(layer),
          {staging_->at<std::int32_t>(sequence_place_).raw(), staging_->at<std::int32_t>(behind_place_).raw(),
           tables_.rows()}};
}

bool Runner::layer(int layer, const LayerRows& rows) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
  const int group_heads = shape_.heads / shape_.kv_heads;
  const kernels::KvTable<Place::device> cache = views_.cached(layer);
  const std::int32_t* const sequence = staging_->at<std::int32_t>(sequence_place_).raw();
  const std::int32_t* const behind = staging_->at<std::int32_t>(behind_place_).raw();
  float* lse = audits_.any() ? audits_.read_lse(layer) : feedback_.any() ? feedback_.lse() : heats_.lse();
  if (lse == nullptr) lse = mean_tokens_.lse();
  if (lse == nullptr) lse = tiles_.lse();
  if (layer == 0) heats_.start();
  summaries_.make(layer, cache, *staging_, *operations_);
  const kernels::KvTable<Place::device> past = widened_.any() ? views_.widened(layer) : cache;
  for (const kernels::PromptRows& prompt : tables_.prompts()) {
    if (widened_.any()) widened_.run(prompt, cache, past);
    if (tiles_.run(layer, prompt, {past, rows.q, group_heads, scale, lse, rows.out}, *operations_)) continue;
    operations_->prefill({past, prompt, rows.q, group_heads, scale, rows.out, lse});
  }
  if (!tables_.verified().empty()) {
    kernels::PromptRows any;
    any.rows = most_rows(tables_.verified());
    operations_->prefill({cache, any, rows.q, group_heads, scale, rows.out, lse,
                          staging_->at<kernels::PromptRows>(verified_place_),
                          static_cast<int>(tables_.verified().size())});
  }
  // What is added to attention, and rows of prompts, come as floats alone.
  const bool narrows = rows.narrow && tables_.prompts().empty() && tables_.verified().empty() && !mean_tokens_.any();
  const GroupSource source{.stream = stream_,
                           .operations = *operations_,
                           .staging = *staging_,
                           .tables = tables_,
                           .views = views_,
                           .summaries = summaries_,
                           .trees = trees_,
                           .units = units_,
                           .low_rank = low_rank_,
                           .heats = heats_,
                           .space = space_,
                           .waiting = staging_->at<std::byte*>(waiting_place_),
                           .piece_slots = cache_.waiting().piece_slots,
                           .gate_angles = staging_->at<float>(angles_place_),
                           .kv_heads = shape_.kv_heads,
                           .head_dim = shape_.head_dim};
  GroupCall call{
      .cache = cache, .group = group_heads, .scale = scale, .scores = space_.scores(), .sets = space_.sets()};
  for (std::size_t g = 0; g < tables_.groups().size(); ++g) {
    const RowGroup& group = tables_.groups()[g];
    const StagedLayer& place = places_.at(g, layer);
    const std::size_t first_query = size(group.row) * size(shape_.heads);
    const std::size_t at = first_query * size(shape_.head_dim);
    call.rows = {sequence + group.row, behind + group.row, group.rows};
    call.q = rows.q.raw() + at;
    call.reads = staging_->at<kernels::Read>(place.reads);
    call.out = rows.out.raw() + at;
    if (narrows) call.narrow = rows.narrow.raw() + at;
    call.lse = lse == nullptr ? nullptr : lse + first_query;
    run_group(source, call, place, layer, place.audit_count > 0 ? audits_.all_lse(layer) + first_query : nullptr);
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

void Runner::finish() {
  feedback_.finish();
  heats_.finish();
  audits_.finish();
  records_.finish();
  host_sets_.finish(space_.set_memory());
  space_.finish();
}

std::span<const ReadCounters> Runner::end() {
  const bool overlaps = open_ > 1;
  const PassTables& tables = overlaps ? tables_before_ : tables_;
  records_.tell(tables, host_sets_, space_.counts(), audits_, on_head);
  failures_ = records_.failures();
  feedback_.end();
  heats_.end(tables);
  counters_.clear();
  const PassReads reads{cache_, tables, overlaps ? places_before_ : places_, space_.counts(),
                        shape_.heads / shape_.kv_heads};
  for (const PassEntry& entry : tables.entries()) {
    ReadCounters& counters = counters_.emplace_back();
    if (!failures_.empty() && failures_[counters_.size() - 1]) continue;
    SequenceState& state = *entry.rows.state;
    counters.index_build_s += trees_.end(entry.rows) + units_.end(entry.rows) + low_rank_.end(entry.rows);
    mean_tokens_.end(entry.rows);
    if (entry.rows.decodes()) {
      count_reads(reads, counters_.size() - 1, counters);
      if (tier_.any()) {
        if (auto failure = tier_.end(tables, entry, host_sets_, space_.counts(), pages_, counters)) {
          failures_.resize(tables.entries().size());
          failures_[counters_.size() - 1] = std::move(failure);
          continue;
        }
      }
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
  --open_;
  began_ = overlaps;
  return counters_;
}

}  // namespace glimpse::attention::cuda
