#include "glimpse/attention/cuda/low_rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <utility>

#include "glimpse/attention/cuda/directions.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/cuda/factors.h"

namespace glimpse::attention::cuda {
namespace {

constexpr std::int64_t kTokensAtOnce = 16384;

}  // namespace

/// What factors are made in, while they are.
struct LowRank::Room {
  std::int64_t at_once;
  Directions found;
  kernels::cuda::Array<float> rows, parts, directions;
  kernels::cuda::Array<std::uint16_t> factors;

  Room(LowRank& of, const SequenceRows& sequence, std::int64_t tokens, const Directions::Shape& shape)
      : at_once(require(of, sequence, std::min(tokens, kTokensAtOnce), shape)),
        found(
            of.stream_, [&of](std::size_t count, const auto& work) { of.builder_.share(count, work); }, shape) {
    const std::size_t wide = size(shape.width), columns = size(shape.rank);
    rows = kernels::cuda::Array<float>(of.stream_, size(at_once) * wide);
    parts = kernels::cuda::Array<float>(of.stream_, kernels::cuda::gram_floats(shape.width));
    directions = kernels::cuda::Array<float>(of.stream_, wide * columns);
    factors = kernels::cuda::Array<std::uint16_t>(of.stream_, size(at_once) * columns);
  }

  /// Throws UserError where there is no room for so many tokens.
  static std::int64_t require(LowRank& of, const SequenceRows& sequence, std::int64_t at_once,
                              const Directions::Shape& shape) {
    const std::size_t wide = size(shape.width), columns = size(shape.rank);
    const std::size_t floats =
        size(at_once) * (wide + columns) + kernels::cuda::gram_floats(shape.width) + wide * columns;
    of.require_room(sequence, floats * sizeof(float) + Directions::bytes(shape));
    return at_once;
  }

  /// Calls work(first, count) for the tokens of a layer, some at a time, whose keys before RoPE are in `rows` then.
  template <class Work>
  void for_keys(const LowRank& of, kv::SequenceId sequence, int layer, std::int64_t tokens, const Work& work) {
    std::vector<plan::SlotId> at;
    for (int head = 0; head < of.cache_.shape().kv_heads; ++head) at.push_back({layer, head});
    const DeviceHeads heads(of.cache_, of.stream_, sequence, at, tokens);
    const kernels::RotationPairs pairs = of.pairs();
    for (std::int64_t first = 0; first < tokens; first += at_once) {
      const auto count = static_cast<std::int32_t>(std::min(at_once, tokens - first));
      kernels::cuda::keys_before_rope(of.stream_, {.format = of.cache_.shape().format,
                                                   .heads = heads.views(),
                                                   .head_count = heads.count(),
                                                   .first = static_cast<std::int32_t>(first),
                                                   .count = count,
                                                   .angles = of.angles(),
                                                   .turned = pairs.dims,
                                                   .neox = pairs.neox,
                                                   .rows = rows.pointer()});
      work(first, count);
    }
    of.stream_.synchronize();  // the views end here
  }
};

void LowRank::begin() {
  needed_.clear();
  // Nobody else has these any more.
  std::erase_if(copies_, [](const auto& copy) { return copy.second.keys.use_count() == 1; });
  build_s_.clear();
}

void LowRank::follow(const SequenceRows& rows) {
  if (!rows.state->wants_low_rank() || !rows.decodes() || reads_everything(rows)) return;
  check(rotation_ != nullptr, "keys of low rank are turned by somebody");
  const auto& ranks = rows.state->key_ranks;
  bool missing = false;
  for (std::size_t layer = 0; layer < ranks.size(); ++layer) {
    missing |= ranks[layer] > 0 && rows.state->low_rank[layer] == nullptr;
  }
  // Forked from another plan, or dense until now.
  if (missing && rows.state->prompt_tokens > 0) build_s_[rows.sequence] = make(rows, rows.state->prompt_tokens);
  send(rows);
}

double LowRank::end(const SequenceRows& rows) {
  if (rows.decodes()) {
    const auto built = build_s_.find(rows.sequence);
    return built == build_s_.end() ? 0 : std::exchange(built->second, 0);
  }
  if (!rows.state->wants_low_rank()) return 0;
  SequenceState& state = *rows.state;
  const std::int64_t tokens = rows.position + rows.rows;
  if (ends_prompt(rows)) {
    std::fill(state.low_rank.begin(), state.low_rank.end(), nullptr);
    return rows.program->dense_at(tokens + 1) ? 0 : make(rows, tokens);
  }
  const bool made =
      std::any_of(state.low_rank.begin(), state.low_rank.end(), [](const auto& keys) { return keys != nullptr; });
  if (rows.kind != PassKind::correct || !made || rows.position >= state.prompt_tokens) return 0;
  std::fill(state.low_rank.begin(), state.low_rank.end(), nullptr);
  return make(rows, state.prompt_tokens);
}

/// The factors of all layers that want some and have none.
double LowRank::make(const SequenceRows& rows, std::int64_t tokens) {
  const auto start = std::chrono::steady_clock::now();
  SequenceState& state = *rows.state;
  turn_to(tokens);
  std::vector<int> layers;
  for (int layer = 0; layer < cache_.shape().layers; ++layer) {
    if (state.key_ranks[size(layer)] > 0 && state.low_rank[size(layer)] == nullptr) layers.push_back(layer);
  }
  const kernels::KvFormat& format = cache_.shape().format;
  const int width = cache_.shape().kv_heads * format.dim;
  const int most = *std::max_element(state.key_ranks.begin(), state.key_ranks.end());
  Room room(*this, rows, tokens, {.layers = static_cast<int>(layers.size()), .width = width, .rank = most});

  std::vector<std::vector<float>> directions;
  for (std::size_t first = 0; first < layers.size(); first = directions.size()) {
    const std::size_t count = std::min(size(room.found.at_once()), layers.size() - first);
    std::vector<int> ranks;
    room.found.clear();
    for (std::size_t i = first; i < first + count; ++i) {
      ranks.push_back(state.key_ranks[size(layers[i])]);
      room.for_keys(*this, rows.sequence, layers[i], tokens, [&](std::int64_t, std::int32_t keys) {
        kernels::cuda::gram(stream_, {.rows = room.rows.constant(),
                                      .count = keys,
                                      .width = width,
                                      .parts = room.parts.pointer(),
                                      .matrix = room.found.matrix(static_cast<int>(i - first))});
      });
    }
    std::ranges::move(room.found.find(ranks), std::back_inserter(directions));
  }
  // Gigabytes of a long prompt, which one thread would take long to clear.
  std::vector<std::vector<std::byte>> factors(layers.size());
  builder_.share(layers.size(), [&](std::size_t i) {
    factors[i].resize(size(tokens) * size(state.key_ranks[size(layers[i])]) * sizeof(std::uint16_t));
  });
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const int rank = state.key_ranks[size(layers[i])];
    room.directions.set(directions[i]);
    room.for_keys(*this, rows.sequence, layers[i], tokens, [&](std::int64_t first, std::int32_t count) {
      kernels::cuda::project(stream_, {.rows = room.rows.constant(),
                                       .count = count,
                                       .width = width,
                                       .columns = rank,
                                       .directions = room.directions.constant(),
                                       .type = kernels::cuda::factor_type(format.type),
                                       .out = room.factors.pointer()});
      const std::size_t each = size(rank) * sizeof(std::uint16_t);
      room.factors.memory().copy_out(0, std::span(factors[i]).subspan(size(first) * each, size(count) * each));
    });
    state.low_rank[size(layers[i])] = std::make_shared<const kv::LowRankKeys>(kv::LowRankKeys::Made{
        format.dim, kernels::cuda::factor_type(format.type), tokens, rank, directions[i], std::move(factors[i])});
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Those of others come again when they are read.
void LowRank::make_room() {
  std::erase_if(copies_, [&](const auto& copy) { return !needed_.contains(copy.first); });
}

/// Throws UserError where the device has no room to make factors in.
void LowRank::require_room(const SequenceRows& rows, std::size_t bytes) {
  require_memory(stream_, bytes, rows, "keys before RoPE", [this] { make_room(); });
}

void LowRank::send(const SequenceRows& rows) {
  const auto make_room = [this] { this->make_room(); };
  for (const auto& keys : rows.state->low_rank) needed_.insert(keys.get());
  for (const auto& keys : rows.state->low_rank) {
    if (keys == nullptr || copies_.contains(keys.get())) continue;
    Copy copy;
    const kernels::KvFormat& format = cache_.shape().format;
    std::vector<std::uint32_t> basis;
    for (int head = 0; head < cache_.shape().kv_heads; ++head) {
      const std::vector<std::uint32_t> of = kernels::cuda::packed_basis(keys->basis(head), keys->rank(), format.dim,
                                                                        kernels::cuda::factor_type(format.type));
      basis.insert(basis.end(), of.begin(), of.end());
    }
    // Rows of factors as wide as kernels take them.
    const std::size_t row = keys->row_bytes(keys->rank());
    const std::size_t wide = keys->row_bytes(kernels::cuda::factor_stride(keys->rank()));
    copy.factors = copies_memory(stream_, size(keys->tokens()) * wide, rows, "factors of keys", make_room);
    if (row == wide) {
      copy.factors.copy_in(0, keys->factors());
    } else {
      std::vector<std::byte> factors(copy.factors.size());
      for (std::size_t i = 0; i < size(keys->tokens()); ++i) {
        std::memcpy(factors.data() + i * wide, keys->factors().data() + i * row, row);
      }
      copy.factors.copy_in(0, factors);
    }
    copy.basis = copies_memory(stream_, basis.size() * sizeof(std::uint32_t), rows, "factors of keys", make_room);
    copy.basis.copy_in(0, std::as_bytes(std::span(basis)));
    copy.keys = keys;
    copies_.emplace(keys.get(), std::move(copy));
    turn_to(keys->tokens());
  }
}

/// Angles of all positions below, on the device.
void LowRank::turn_to(std::int64_t positions) {
  if (positions <= turned_) return;
  rotation_->prepare(positions);
  stream_.synchronize();  // what is queued may use the old ones
  const std::span<const float> angles = rotation_->angles(0, positions);
  angles_ = {};
  angles_ = kernels::cuda::Array<float>(stream_, angles);
  turned_ = positions;
  ++moves_;
}

void LowRank::point(const SequenceRows& rows, int layer, kernels::cuda::MadeSet& set) const {
  if (set.rank == 0) return;  // no key is made
  const kv::LowRankKeys& keys = *rows.state->low_rank[size(layer)];
  const Copy& copy = copies_.at(&keys);
  set.stride = keys.rank();
  set.factors = reinterpret_cast<const std::uint16_t*>(copy.factors.raw());
  const std::size_t of_head = copy.basis.size() / sizeof(std::uint32_t) / size(cache_.shape().kv_heads);
  set.basis = reinterpret_cast<const std::uint32_t*>(copy.basis.raw()) + size(set.head) * of_head;
}

}  // namespace glimpse::attention::cuda
