// What a pass asks of chunks without a tree (kv::ChunkBounds): all are scored as units are, and a search of trees,
// whose clusters are single chunks, chooses by their scores.
#include <algorithm>

#include "glimpse/attention/cuda/flat_units.h"
#include "glimpse/attention/cuda/layer_lists.h"
#include "glimpse/attention/cuda/units.h"
#include "glimpse/base/error.h"

namespace glimpse::attention::cuda {
namespace {

const kv::ChunkList& list_of(const PassEntry& entry, const SelectOp& select) {
  const kv::ChunkList* const chunks = chunks_of(*units_of(entry.rows, select.writes.layer, select.first_head));
  check(chunks != nullptr, "a search of chunks has an index of them");
  return *chunks;
}

kv::AlwaysIn always_in(const PassEntry& entry, const SelectOp& select) {
  return always_in(entry, select, list_of(entry, select).covered());
}

}  // namespace

std::int64_t searched_chunks(const PassEntry& entry, const SelectOp& select) {
  const kv::AlwaysIn in = always_in(entry, select);
  return in.room > 0 && in.tail > in.sink ? list_of(entry, select).count() : 0;
}

std::int64_t chunk_capacity(const PassEntry& entry, const SelectOp& select) {
  const std::int64_t most = length_step(entry.tokens);
  const kv::AlwaysIn in = always_in(entry, select);
  return std::max(select.capacity(most), std::min(most, in.sink + entry.tokens - in.tail + in.room));
}

std::int64_t chunk_stride(const PassEntry& entry, const SelectOp& select) {
  return length_step(list_of(entry, select).count());
}

void add_chunk_search(const PassEntry& entry, const SelectOp& select, int row, GroupLayer& to) {
  const plan::Term& term = select.selector->terms.front();
  const kv::AlwaysIn in = always_in(entry, select);
  kernels::cuda::UnitSearch scores;
  scores.row = row;
  scores.head = select.first_head;
  scores.last = static_cast<std::int32_t>(searched_chunks(entry, select));
  scores.weight = static_cast<float>(term.index.deviation_weight);
  scores.mean_query = term.group == plan::GroupPooling::mean_query && select.lists == 1 ? 1 : 0;
  to.units.push_back(scores);
  kernels::cuda::TreeSearch search;
  search.scored = 1;
  search.row = row;
  search.head = select.first_head;
  search.pooling =
      term.group == plan::GroupPooling::mean_score ? kernels::Pooling::mean_score : kernels::Pooling::max_score;
  search.mean_query = scores.mean_query;
  search.sink = static_cast<std::int32_t>(in.sink);
  search.tail = static_cast<std::int32_t>(in.tail);
  search.room = scores.last > 0 ? static_cast<std::int32_t>(in.room) : 0;
  const int set = first_set(entry, select.writes);
  for (int list = 0; list < select.lists; ++list) {
    search.set = set + list;
    search.query = select.lists > 1 ? list : -1;
    to.trees.push_back(search);
  }
}

}  // namespace glimpse::attention::cuda
