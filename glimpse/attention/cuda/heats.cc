#include "glimpse/attention/cuda/heats.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "glimpse/attention/heat.h"
#include "glimpse/base/size.h"

namespace glimpse::attention::cuda {
namespace {

std::size_t blocks_of(const PassEntry& entry) {
  const std::int64_t block = entry.rows.state->heat.block();
  return size((entry.tokens + block - 1) / block);
}
/// What a row that decodes gives flows back.
bool feeds(const PassEntry& entry) {
  return entry.first_heat >= 0 && entry.rows.decodes() && entry.rows.program->feeds();
}

}  // namespace

void Heats::begin(const PassTables& tables, const PassTables* behind, std::span<const std::int64_t> lengths, int heads,
                  kernels::cuda::Staging& staging) {
  tables_ = &tables;
  staging_ = &staging;
  heads_ = heads;
  heat_.assign(size(tables.sizes().heats) * tables.sizes().heat_stride, 0.0F);
  shift_.clear();
  pieces_.clear();
  fold_.assign(size(cache_.shape().layers), {});
  column_stride_ = 0;
  for (std::size_t i = 0; i < tables.entries().size(); ++i) {
    const PassEntry& entry = tables.entries()[i];
    if (entry.first_heat < 0) continue;
    if (!entry.rows.decodes()) {
      fade_heat(entry.rows);
      find_observed(entry, i, lengths[i]);
      continue;
    }
    for (int row = 0; row < entry.heats && !entry.dense; ++row) {
      const std::vector<float>& heat = entry.rows.state->heat.of(row);
      std::copy_n(
          heat.begin(), std::min(heat.size(), blocks_of(entry)),
          heat_.begin() + static_cast<std::ptrdiff_t>(size(entry.first_heat + row) * tables.sizes().heat_stride));
    }
  }
  steps_.clear();
  if (behind != nullptr && tables.sizes().heats > 0) step_behind(*behind);
  heat_place_ = staging.add(heat_);
  steps_place_ = staging.add(steps_);
  shift_place_ = staging.add(shift_);
  pieces_place_ = staging.add(pieces_);
  fold_places_.clear();
  for (const auto& pieces : fold_) fold_places_.push_back(staging.add(pieces));
  make_space(heads);
}

void Heats::step_behind(const PassTables& behind) {
  steps_.resize(size(tables_->sizes().heats));
  gains_stride_ = behind.sizes().heat_stride;
  std::size_t at = 0;
  for (const PassEntry& entry : tables_->entries()) {
    while (at < behind.entries().size() && behind.entries()[at].rows.state != entry.rows.state) ++at;
    check(at < behind.entries().size(), "a pass behind one of its sequences");
    const PassEntry& before = behind.entries()[at];
    if (entry.first_heat < 0 || !feeds(before)) continue;
    for (int row = 0; row < entry.heats; ++row) {
      steps_[size(entry.first_heat + row)] = {before.first_heat + row, static_cast<std::int32_t>(blocks_of(before)),
                                              entry.rows.program->heat().decay};
    }
  }
}

void Heats::find_observed(const PassEntry& entry, std::size_t number, std::int64_t length) {
  const SequenceRows& rows = entry.rows;
  const auto first = static_cast<std::int32_t>(entry.observed - rows.position);
  const auto last = static_cast<std::int32_t>(rows.rows);
  shift_.resize(size(tables_->rows()), 0.0F);
  for (std::int32_t row = first; row < last; ++row) {
    shift_[size(rows.first_row + row)] = static_cast<float>((last - 1 - row) * std::log(rows.program->heat().decay));
  }
  const auto piece = static_cast<std::int32_t>(pieces_.size());
  pieces_.push_back({static_cast<std::int32_t>(number), rows.first_row + first, last - first,
                     static_cast<std::int32_t>(length - rows.position - first)});
  column_stride_ = std::max(column_stride_, size(length_step(entry.tokens)));
  for (int layer = 0; layer < cache_.shape().layers; ++layer) {
    if (!rows.program->layer(layer).heats) continue;
    fold_[size(layer)].push_back(
        {piece, static_cast<std::int32_t>(entry.tokens), entry.heat_of(layer), rows.state->heat.block()});
  }
}

void Heats::make_space(int heads) {
  const std::size_t stride = tables_->sizes().heat_stride;
  if (stride == 0) return;
  const std::size_t kv_heads = size(cache_.shape().kv_heads);
  const std::size_t places = size(tables_->sizes().heats) * stride;
  std::size_t most = 0;
  for (const RowGroup& group : tables_->groups()) most = std::max(most, size(group.rows));
  bool moved = grow(values_, stream_, most * kv_heads * stride);
  moved |= grow(ranked_, stream_,
                most * size(tables_->sizes().most_ranked) * kernels::cuda::rank_room(tables_->sizes().most_ranks));
  moved |= grow(kept_, stream_, size(tables_->sizes().kept) * stride);
  moved |= grow(lse_, stream_, size(tables_->rows()) * size(heads));
  moved |= grow(sums_, stream_, places * kv_heads);
  moved |= grow(readers_, stream_, places * kv_heads);
  if (!pieces_.empty()) {
    moved |= grow(shifted_, stream_, size(tables_->rows()) * size(heads));
    moved |= grow(columns_, stream_, pieces_.size() * kv_heads * column_stride_);
  }
  if (!steps_.empty()) moved |= grow(stepped_, stream_, places);
  if (moved) ++moves_;
  if (places > gains_.size()) make_gains(places);
}

/// A pass that still runs keeps what it gave: the next one reads it on the device, and the host has yet to.
void Heats::make_gains(std::size_t values) {
  ++moves_;
  values += values / 4 + 256;
  kernels::cuda::Pinned host(stream_, values * sizeof(double));
  kernels::cuda::Array<double> gains(stream_, values);
  stream_.synchronize();
  std::copy_n(host_.raw(), host_.size(), host.raw());
  if (gains_.size() > 0) gains.set(gains_.values());
  host_ = std::move(host);
  gains_ = std::move(gains);
}

PartsPlace Heats::add(const GroupLayer& layer) {
  PartsPlace place;
  place.unions = staging_->add(layer.unions);
  place.queries = staging_->add(layer.union_queries);
  place.ranks = staging_->add(layer.ranks);
  place.united = staging_->add(layer.united);
  place.heats = staging_->add(layer.heats);
  place.union_count = static_cast<int>(layer.unions.size());
  place.rank_count = static_cast<int>(layer.ranks.size());
  place.heat_count = static_cast<int>(layer.heats.size());
  return place;
}

void Heats::add_to(std::vector<std::int64_t>& key) const {
  key.insert(key.end(),
             {static_cast<std::int64_t>(tables_->sizes().heat_stride), tables_->sizes().heats, tables_->sizes().kept,
              static_cast<std::int64_t>(std::bit_ceil(static_cast<unsigned>(tables_->sizes().most_candidates))),
              tables_->sizes().most_heated, tables_->sizes().most_ranks, tables_->sizes().most_ranked,
              static_cast<std::int64_t>(pieces_.size()), static_cast<std::int64_t>(steps_.size()),
              static_cast<std::int64_t>(steps_.empty() ? 0 : gains_stride_), moves_});
}

void Heats::start() {
  if (tables_->sizes().heats == 0) return;
  sums_.memory().fill(std::byte{0});
  readers_.memory().fill(std::byte{0});
  if (steps_.empty()) return;
  kernels::cuda::step_heat(stream_, {.heat = staging_->at<float>(heat_place_),
                                     .steps = staging_->at<kernels::cuda::HeatStep>(steps_place_),
                                     .gains = gains_.constant(),
                                     .out = stepped_.pointer(),
                                     .rows = tables_->sizes().heats,
                                     .stride = tables_->sizes().heat_stride,
                                     .gains_stride = gains_stride_});
}

void Heats::choose(const GroupCall& call, const PartsPlace& place,
                   kernels::Operations<kernels::Place::device>& operations) {
  if (place.union_count + place.rank_count == 0) return;
  const std::size_t stride = tables_->sizes().heat_stride;
  kernels::cuda::unite(stream_, {.cache = call.cache,
                                 .rows = call.rows,
                                 .group = call.group,
                                 .unions = staging_->at<kernels::cuda::Union>(place.unions),
                                 .count = place.union_count,
                                 .most = tables_->sizes().most_candidates,
                                 .sets = call.sets,
                                 .scores = call.scores,
                                 .queries = staging_->at<std::int32_t>(place.queries),
                                 .heat = steps_.empty() ? staging_->at<float>(heat_place_) : stepped_.constant(),
                                 .kept = kept_.pointer(),
                                 .values = values_.pointer(),
                                 .stride = stride});
  kernels::cuda::merge_ranks(stream_, {.cache = call.cache,
                                       .rows = call.rows,
                                       .group = call.group,
                                       .merges = staging_->at<kernels::cuda::RankMerge>(place.ranks),
                                       .count = place.rank_count,
                                       .lists = tables_->sizes().most_ranked,
                                       .most = tables_->sizes().most_ranks,
                                       .sets = call.sets,
                                       .scores = call.scores,
                                       .keys = ranked_.pointer(),
                                       .values = values_.pointer(),
                                       .stride = stride});
  // A row of values for each KV head, the first of which has what the set is chosen by.
  operations.select({call.cache,
                     call.rows,
                     1,
                     {values_.pointer(), call.scores.lse, stride},
                     staging_->at<kernels::Choice>(place.united),
                     place.union_count + place.rank_count,
                     call.sets});
}

void Heats::feed(const GroupCall& call, const PartsPlace& place) {
  kernels::cuda::add_heat(stream_, {.cache = call.cache,
                                    .rows = call.rows,
                                    .scores = call.scores,
                                    .group = call.group,
                                    .reads = call.reads,
                                    .sets = call.sets,
                                    .heats = staging_->at<kernels::cuda::HeatRow>(place.heats),
                                    .count = place.heat_count,
                                    .most = tables_->sizes().most_heated,
                                    .sums = sums_.pointer(),
                                    .readers = readers_.pointer(),
                                    .stride = tables_->sizes().heat_stride});
}

void Heats::observe(int layer, const GroupCall& call, kernels::Operations<kernels::Place::device>& operations) {
  const auto& fold = fold_[size(layer)];
  if (fold.empty()) return;
  kernels::cuda::shift_rows(stream_,
                            {call.lse, staging_->at<float>(shift_place_), shifted_.pointer(), call.rows.rows, heads_});
  operations.column_sums({call.cache, staging_->at<kernels::PromptRows>(pieces_place_),
                          static_cast<int>(pieces_.size()), call.q, shifted_.pointer().raw(), call.group, call.scale,
                          column_stride_, columns_.pointer()});
  kernels::cuda::fold_heat(stream_, {.columns = columns_.constant(),
                                     .pieces = staging_->at<kernels::cuda::HeatPiece>(fold_places_[size(layer)]),
                                     .count = static_cast<int>(fold.size()),
                                     .kv_heads = cache_.shape().kv_heads,
                                     .most = static_cast<int>(tables_->sizes().heat_stride),
                                     .column_stride = column_stride_,
                                     .stride = tables_->sizes().heat_stride,
                                     .sums = sums_.pointer()});
}

void Heats::finish() {
  if (tables_->sizes().heats == 0) return;
  const std::size_t values = size(tables_->sizes().heats) * tables_->sizes().heat_stride;
  kernels::cuda::heat_gains(stream_, {.sums = sums_.constant(),
                                      .readers = readers_.constant(),
                                      .gains = gains_.pointer(),
                                      .places = tables_->sizes().heats,
                                      .kv_heads = cache_.shape().kv_heads,
                                      .stride = tables_->sizes().heat_stride});
  gains_.memory().copy_out_later(0, host_, values * sizeof(double));
}

void Heats::end(const PassTables& tables) const {
  for (const PassEntry& entry : tables.entries()) {
    if (entry.first_heat >= 0) take(entry, tables.sizes().heat_stride);
  }
}

/// `stride`: of the pass.
void Heats::take(const PassEntry& entry, std::size_t stride) const {
  const std::size_t blocks = blocks_of(entry);
  const auto* const from = reinterpret_cast<const double*>(host_.raw());
  const auto of_row = [&](int row) { return std::span(from + size(entry.first_heat + row) * stride, blocks); };
  if (!entry.rows.decodes()) {
    const plan::Heat& how = entry.rows.program->heat();
    for (int row = how.per_layer ? how.first_layer : 0; row < entry.heats; ++row) {
      add_prompt_heat(entry.rows, row, of_row(row));
    }
    return;
  }
  if (!feeds(entry)) {
    for (int row = 0; row < entry.heats; ++row) {
      std::vector<float>& heat = entry.rows.state->heat.of(row);
      heat.resize(std::max(heat.size(), blocks), 0.0F);
    }
    return;
  }
  HeatGains gains;
  for (int row = 0; row < entry.heats; ++row) gains.emplace_back(of_row(row).begin(), of_row(row).end());
  add_step_heat(entry.rows, std::move(gains));
}

}  // namespace glimpse::attention::cuda
