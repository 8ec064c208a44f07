#include "glimpse/attention/cuda/low_rank.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"

namespace glimpse::attention::cuda {
namespace {

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

constexpr std::size_t kLayerBytes = std::size_t{1} << 30;  ///< of keys that are on the host at a time

}  // namespace

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

/// The factors of all layers that want some and have none: the keys of a few layers come back at a time.
double LowRank::make(const SequenceRows& rows, std::int64_t tokens) {
  SequenceState& state = *rows.state;
  rotation_->prepare(tokens);
  std::vector<int> layers;
  for (int layer = 0; layer < cache_.shape().layers; ++layer) {
    if (state.key_ranks[size(layer)] > 0 && state.low_rank[size(layer)] == nullptr) layers.push_back(layer);
  }
  const int heads = cache_.shape().kv_heads;
  const kernels::KvFormat& format = cache_.shape().format;
  const std::size_t pages = (size(tokens) + kernels::kPageTokens - 1) / kernels::kPageTokens;
  const std::size_t at_once = std::max<std::size_t>(1, kLayerBytes / (pages * format.page_bytes() * size(heads)));
  std::vector<kernels::PageId> table(pages);
  std::iota(table.begin(), table.end(), kernels::PageId{0});
  double seconds = 0;
  for (std::size_t first = 0; first < layers.size(); first += at_once) {
    const std::span<const int> some = std::span(layers).subspan(first, std::min(at_once, layers.size() - first));
    std::vector<IndexItem> items;
    for (const int layer : some) {
      for (int head = 0; head < heads; ++head) items.push_back({layer, head, nullptr, {}, {}});
    }
    builder_.read(rows, items, {0, tokens});
    seconds += builder_.share(some.size(), [&](std::size_t i) {
      std::vector<kernels::HeadView> views;
      for (int head = 0; head < heads; ++head) {
        views.push_back({items[i * size(heads) + size(head)].keys.data(), nullptr, table.data(), nullptr,
                         static_cast<std::int32_t>(pages * kernels::kPageTokens)});
      }
      kv::LayerKeys keys;
      keys.heads = views;
      keys.format = format;
      keys.tokens = tokens;
      keys.before_rope = [this](std::int64_t position, float* row) { rotation_->turn_back(position, row); };
      const auto layer = size(some[i]);
      state.low_rank[layer] = std::make_shared<const kv::LowRankKeys>(keys, state.key_ranks[layer]);
    });
  }
  return seconds;
}

void LowRank::send(const SequenceRows& rows) {
  const auto make_room = [&] {  // those of others come again when they are read
    std::erase_if(copies_, [&](const auto& copy) { return !needed_.contains(copy.first); });
  };
  for (const auto& keys : rows.state->low_rank) needed_.insert(keys.get());
  for (const auto& keys : rows.state->low_rank) {
    if (keys == nullptr || copies_.contains(keys.get())) continue;
    Copy copy;
    const kernels::KvFormat& format = cache_.shape().format;
    std::vector<std::uint32_t> basis;
    for (int head = 0; head < cache_.shape().kv_heads; ++head) {
      const std::vector<std::uint32_t> of =
          kernels::cuda::packed_basis(keys->basis(head), keys->rank(), format.dim, format.type);
      basis.insert(basis.end(), of.begin(), of.end());
    }
    // Rows of factors as wide as kernels take them.
    const std::size_t row = keys->row_bytes(keys->rank());
    const std::size_t wide = keys->row_bytes(kernels::cuda::factor_stride(keys->rank()));
    std::vector<std::byte> factors(size(keys->tokens()) * wide);
    for (std::size_t i = 0; i < size(keys->tokens()); ++i) {
      std::memcpy(factors.data() + i * wide, keys->factors().data() + i * row, row);
    }
    copy.factors = copies_memory(stream_, factors.size(), rows, "factors of keys", make_room);
    copy.factors.copy_in(0, factors);
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
