// What tests and inspection see of a sequence.
#include <fmt/format.h>

#include "glimpse/base/error.h"
#include "glimpse/engine/sequence_impl.h"
#include "glimpse/kv/inspect.h"

namespace glimpse::engine {
namespace {

void require_head(const Runtime& runtime, int layer, int head) {
  const plan::ModelShape shape = runtime.loaded.shape();
  if (layer >= 0 && layer < shape.layers && head >= 0 && head < shape.kv_heads) return;
  throw UserError(fmt::format("no layer {}, KV head {}: the model has layers 0 to {} and KV heads 0 to {}", layer, head,
                              shape.layers - 1, shape.kv_heads - 1));
}

}  // namespace

std::vector<float> Sequence::heat(int layer) const {
  require_head(*impl().runtime, layer, 0);
  const attention::SequenceState& state = impl().sequence.attention;
  return state.heat.any() ? state.heat.of(layer) : std::vector<float>();
}

std::vector<float> Sequence::statistic(int layer, int kv_head) const {
  require_head(*impl().runtime, layer, kv_head);
  const attention::SequenceState& state = impl().sequence.attention;
  return *state.statistics[state.head(layer, kv_head)];
}

std::vector<std::int32_t> Sequence::live(int layer, int kv_head) const {
  require_head(*impl().runtime, layer, kv_head);
  return kv::live_positions(impl().runtime->cache(), impl().sequence.id, layer, kv_head);
}

std::vector<std::int32_t> Sequence::units_of(int layer, int kv_head, std::span<const std::int32_t> set) const {
  require_head(*impl().runtime, layer, kv_head);
  const ActiveSequence& sequence = impl().sequence;
  const kv::KeyIndex* const index = sequence.attention.indices[sequence.attention.head(layer, kv_head)].get();
  if (index == nullptr) return {};
  impl().runtime->device.backend->require_records("saying what an index chose");
  return index->units_of(set, sequence.length);
}

std::vector<float> Sequence::value(int layer, int kv_head, std::int64_t position) const {
  require_head(*impl().runtime, layer, kv_head);
  return kv::value_at(impl().runtime->cache(), impl().sequence.id, layer, kv_head, position);
}

std::vector<float> Sequence::key(int layer, int kv_head, std::int64_t position) const {
  require_head(*impl().runtime, layer, kv_head);
  return kv::key_at(impl().runtime->cache(), impl().sequence.id, layer, kv_head, position);
}

std::vector<float> Sequence::keys(int layer, int kv_head) const {
  require_head(*impl().runtime, layer, kv_head);
  const ActiveSequence& sequence = impl().sequence;
  return kv::keys_of(impl().runtime->cache(), sequence.id, layer, kv_head, sequence.length);
}

}  // namespace glimpse::engine
