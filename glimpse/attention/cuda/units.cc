#include "glimpse/attention/cuda/units.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "glimpse/attention/cuda/set_source.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/index/gate_index.h"
#include "glimpse/kv/index/landmarks.h"

namespace glimpse::attention::cuda {
namespace {

/// Room for units that later steps add, in whole fours; a prompt's landmarks stay as many.
std::int32_t room_of(const kv::KeyIndex& index, std::int32_t count) {
  constexpr std::int32_t kLeast = 64;
  const bool grows = dynamic_cast<const kv::Landmarks*>(&index) == nullptr;
  return ((grows ? count + count / 8 + kLeast : count) + 3) / 4 * 4;
}

/// The tokens that an index grows to, before a decoding pass or behind a prompt. Keys of a pass's row are not there
/// yet: blocks end before it, and chunks leave it out of those that they count.
std::int64_t tokens_of(const SequenceRows& rows, const IndexItem& item) {
  if (rows.kind == PassKind::draft) return rows.committed;
  const bool counts_own = !rows.decodes() || chunks_of(*item.index) != nullptr;
  return rows.position + (counts_own ? rows.rows : 0);
}

/// What that reads.
KeySpan wanted(const SequenceRows& rows, const IndexItem& item, std::int64_t prompt) {
  const std::int64_t tokens = tokens_of(rows, item);
  if (const kv::ChunkList* const chunks = chunks_of(*item.index)) {
    return {chunks->covered(), chunks->covered_after(rows.state->boundaries, prompt, tokens)};
  }
  const std::int64_t block = selector_of(rows, item.layer, item.head).block;
  const bool of_prompt = dynamic_cast<const kv::Landmarks*>(item.index) != nullptr;
  if (of_prompt && tokens < prompt) return {};
  return {item.index->covered(), (of_prompt ? prompt : tokens) / block * block};
}

/// What a correction of tokens [first, last) reads, some of which the index covers.
KeySpan mended(const SequenceRows& rows, const IndexItem& item, std::int64_t first, std::int64_t last) {
  const std::int64_t covered = item.index->covered();
  if (const kv::ChunkList* const chunks = chunks_of(*item.index)) {
    return {chunks->begin(chunks->chunk_of(first)), chunks->end(chunks->chunk_of(std::min(last, covered) - 1))};
  }
  const std::int64_t block = selector_of(rows, item.layer, item.head).block;
  return {first / block * block, std::min(covered, (last + block - 1) / block * block)};
}

const kv::Gates* gates_of(const kv::KeyIndex& index) {
  const auto* const gated = dynamic_cast<const kv::GateIndex*>(&index);
  return gated == nullptr ? nullptr : &gated->gates();
}

std::vector<float> floats_of(KvType type, std::span<const std::byte> values) {
  const std::size_t width = row_bytes(type, 1);
  std::vector<float> made(values.size() / width);
  for (std::size_t i = 0; i < made.size(); ++i) {
    std::uint16_t half = 0;
    std::memcpy(type == KvType::f32 ? static_cast<void*>(&made[i]) : &half, values.data() + i * width, width);
    if (type == KvType::f16) made[i] = float_from_f16(half);
    if (type == KvType::bf16) made[i] = float_from_bf16(half);
  }
  return made;
}

template <class T>
void write(std::vector<kernels::cuda::Write>& to, T* place, T value) {
  to.push_back({reinterpret_cast<std::uint32_t*>(place), std::bit_cast<std::uint32_t>(value)});
}

/// What an index has more than its copy.
void send_new(UnitCopy& copy, const IndexItem& item, std::vector<kernels::cuda::Write>& to) {
  const UnitShape shape = shape_of_units(*item.index);
  if (copy.count == shape.count) return;
  const kv::ChunkList* const chunks = chunks_of(*item.index);
  std::vector<float> row(size(shape.values));
  for (; copy.count < shape.count; ++copy.count) {
    const float radius = write_unit(*item.index, copy.count, row);
    float* const place = copy.rows + size(copy.count) * row.size();
    for (std::size_t i = 0; i < row.size(); ++i) write(to, place + i, row[i]);
    if (shape.radii) write(to, copy.radii + copy.count, radius);
    if (chunks != nullptr) write(to, copy.ends + copy.count, static_cast<std::int32_t>(chunks->end(copy.count)));
  }
}

}  // namespace

kv::KeyIndex* units_of(const SequenceRows& rows, int layer, int head) {
  return index_of(rows, layer, head, searches_units);
}

void Units::begin() {
  copies_.begin();
  turned_.clear();
  turns_ = {};
  most_ = most_chunks_ = 0;
}

double Units::extend(const SequenceRows& rows, std::span<IndexItem> items, std::int64_t prompt) {
  KeySpan all;
  for (const IndexItem& item : items) all = all.with(wanted(rows, item, prompt));
  if (all.empty()) return 0;
  for (const auto& gates : rows.state->gates()) gates->prepare(all.last);
  return builder_.grow(rows, items, all, prompt, [&](IndexItem& item, const kv::KeySource& source) {
    item.index->extend(source, tokens_of(rows, item));
  });
}

void Units::follow(const SequenceRows& rows) {
  if (!rows.decodes() || reads_everything(rows)) return;
  std::vector<IndexItem> items = items_of(rows, searches_units);
  if (items.empty()) return;
  const bool first = items.front().index->covered() == 0;  // built late; what a later step adds is that step's work
  const double seconds = extend(rows, items, rows.state->prompt_tokens);
  auto& known = copies_.of(rows);
  known.build_s = first ? seconds : 0;
  const auto copy_of = [&](const IndexItem& item) -> UnitCopy& {
    return known.copies[rows.state->head(item.layer, item.head)];
  };
  bool whole = copies_.is_other(rows);
  for (std::size_t i = 0; i < items.size() && !whole; ++i) {
    const UnitCopy& copy = copy_of(items[i]);
    const UnitShape shape = shape_of_units(*items[i].index);
    whole = shape.kind != copy.kind || shape.width != copy.width || shape.count > copy.room;
  }
  if (whole) {
    send_all(rows, items);
  } else {
    for (const IndexItem& item : items) send_new(copy_of(item), item, known.writes);
  }
  for (const IndexItem& item : items) {
    constexpr int kStep = 1024;
    const int most = (shape_of_units(*item.index).count + kStep - 1) / kStep * kStep;
    most_ = std::max(most_, most);
    if (chunks_of(*item.index) != nullptr) most_chunks_ = std::max(most_chunks_, most);
  }
  copies_.follow(rows);
  turn_gates(rows);
}

void Units::send_all(const SequenceRows& rows, std::span<const IndexItem> items) {
  // Each head's rows, radii, ends of chunks and marked units, one behind the other, in words.
  std::vector<std::size_t> places(items.size() + 1, 0);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const kv::KeyIndex& index = *items[i].index;
    const UnitShape shape = shape_of_units(index);
    const std::size_t marked = (marked_units(index).size() + 3) / 4 * 4;
    const std::size_t values = size(shape.values + 1 + (chunks_of(index) != nullptr ? 1 : 0));
    places[i + 1] = places[i] + size(room_of(index, shape.count)) * values + marked;
  }
  auto& known = copies_.renew(rows, places.back() * sizeof(float), "an index");
  std::vector<std::vector<float>> values(items.size());
  builder_.share(items.size(), [&](std::size_t i) {
    const kv::KeyIndex& index = *items[i].index;
    const UnitShape shape = shape_of_units(index);
    const std::size_t room = size(room_of(index, shape.count)), row = size(shape.values);
    std::vector<float>& to = values[i];
    to.assign(places[i + 1] - places[i], 0);
    const kv::ChunkList* const chunks = chunks_of(index);
    const std::size_t ends = room * (row + 1), behind = ends + (chunks != nullptr ? room : 0);
    for (std::int32_t unit = 0; unit < shape.count; ++unit) {
      to[room * row + size(unit)] = write_unit(index, unit, std::span(to).subspan(size(unit) * row, row));
      if (chunks == nullptr) continue;
      to[ends + size(unit)] = std::bit_cast<float>(static_cast<std::int32_t>(chunks->end(unit)));
    }
    const std::span<const std::int32_t> marked = marked_units(index);
    for (std::size_t m = 0; m < marked.size(); ++m) to[behind + m] = std::bit_cast<float>(marked[m]);
    UnitCopy& copy = known.copies[rows.state->head(items[i].layer, items[i].head)];
    copy.rows = reinterpret_cast<float*>(known.memory.raw()) + places[i];
    copy.radii = copy.rows + room * row;
    copy.ends = chunks == nullptr ? nullptr : reinterpret_cast<std::int32_t*>(copy.rows + ends);
    copy.marked = reinterpret_cast<std::int32_t*>(copy.rows + behind);
    copy.marked_count = static_cast<std::int32_t>(marked.size());
    copy.count = shape.count;
    copy.room = static_cast<std::int32_t>(room);
    copy.width = shape.width;
    copy.kind = shape.kind;
  });
  for (std::size_t i = 0; i < items.size(); ++i) {
    known.memory.copy_in(places[i] * sizeof(float), std::as_bytes(std::span(values[i])));
  }
  copies_.hold(rows);
}

/// Brings the gates of a sequence to the device, and the angles of its row.
void Units::turn_gates(const SequenceRows& rows) {
  for (const auto& gates : rows.state->gates()) {
    GateMemory& memory = gates_[gates.get()];
    if (memory.gates == nullptr) {
      const GateWeights& weights = gates->weights();
      memory.weights = kernels::cuda::Array<float>(stream_, floats_of(weights.type, weights.q));
      if (!weights.q_norm.empty()) memory.norms = kernels::cuda::Array<float>(stream_, weights.q_norm);
      memory.gates = gates;
    }
    constexpr std::int64_t kStep = 1024;  // so that tables seldom grow
    gates->prepare((rows.position + rows.rows + kStep - 1) / kStep * kStep);
    Turned turned;
    const auto add = [&](const kernels::Rotation& rotation) {
      const auto at = static_cast<std::uint32_t>(turns_.angles.size());
      const std::span<const float> angles = rotation.angles(rows.position, rows.position + 1);
      turns_.angles.insert(turns_.angles.end(), angles.begin(), angles.end());
      return at;
    };
    turns_.pairs = gates->of_model().pairs();
    turned.turn = add(gates->of_model());
    if (gates->own() != nullptr) turned.own_turn = add(*gates->own());
    turned_[{rows.sequence, gates.get()}] = turned;
  }
}

double Units::end(const SequenceRows& rows) {
  if (rows.decodes()) return copies_.take_seconds(rows);
  if (rows.kind == PassKind::correct) return mend(rows);
  return ends_prompt(rows) ? build(rows) : 0;
}

double Units::build(const SequenceRows& rows) {
  std::vector<IndexItem> items = items_of(rows, searches_units);
  if (items.empty()) return 0;
  for (IndexItem& item : items) {  // what it holds may be of a shorter prompt
    const plan::Selector& selector = selector_of(rows, item.layer, item.head);
    if (!depends_on_prompt(selector)) continue;
    auto& index = rows.state->indices[rows.state->head(item.layer, item.head)];
    index = kv::make_index(selector, cache_.shape().format.dim);
    item.index = index.get();
  }
  copies_.forget(rows);
  const std::int64_t tokens = rows.position + rows.rows;
  return rows.program->dense_at(tokens + 1) ? 0 : extend(rows, items, tokens);
}

double Units::mend(const SequenceRows& rows) {
  const std::int64_t first = rows.position, last = rows.position + rows.rows;
  std::vector<IndexItem> items = items_of(rows, searches_units);
  std::erase_if(items, [&](const IndexItem& item) { return item.index->covered() <= first; });
  if (items.empty()) return 0;
  copies_.forget(rows);
  KeySpan span;
  for (const IndexItem& item : items) span = span.with(mended(rows, item, first, last));
  for (const auto& gates : rows.state->gates()) gates->prepare(span.last);
  return builder_.grow(rows, items, span, rows.state->prompt_tokens,
                       [&](IndexItem& item, const kv::KeySource& source) { item.index->refresh(source, first, last); });
}

void point_to(const UnitCopy& copy, kernels::cuda::UnitSearch& search) {
  search.kind = copy.kind;
  search.width = copy.width;
  search.scale = 1 / std::sqrt(static_cast<float>(copy.width));
  search.rows = copy.rows;
  search.radii = copy.radii;
  search.marked = copy.marked;
  search.marked_count = copy.marked_count;
}

void point_to(const UnitCopy& copy, kernels::cuda::TreeSearch& search) {
  search.tree = {.ends = copy.ends, .clusters = copy.count, .chunks = copy.count};
}

void point_to(const UnitCopy& copy, kernels::cuda::MadeSet& set) {
  set.marked = copy.marked;
  set.marked_count = copy.marked_count;
}

kernels::cuda::GateQuery Units::gate_query(const SequenceRows& rows, int layer, int head) const {
  const kv::Gates* const gates = gates_of(*units_of(rows, layer, head));
  check(gates != nullptr, "a head that searches by its gate");
  const GateWeights& weights = gates->weights();
  const GateMemory& memory = gates_.at(gates);
  const Turned& turned = turned_.at({rows.sequence, gates});
  const std::size_t matrix = size(weights.group) * size(weights.dim) * size(weights.head_dim);
  kernels::cuda::GateQuery query;
  query.head = head;
  query.dim = weights.dim;
  query.rotated = weights.rope_dims;
  query.epsilon = weights.norm_epsilon;
  query.weights = memory.weights.constant().raw() + matrix * (size(layer) * size(weights.kv_heads) + size(head));
  if (memory.norms.size() > 0) query.norm = memory.norms.constant().raw() + size(layer) * size(weights.dim);
  query.turn = turned.turn;
  query.own_turn = turned.own_turn;
  return query;
}

}  // namespace glimpse::attention::cuda
