// What attention keeps of a sequence (SequenceState) as bytes and back. Left out: text boundaries, which the tokens
// give. Functions of their arguments; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/attention/sequence_state.h"
#include "glimpse/base/bytes.h"
#include "glimpse/kv/cache.h"
#include "glimpse/plan/plan.h"

namespace glimpse::attention {

void save_state(const SequenceState& state, const plan::Plan& plan, ByteWriter& to);

/// What a state that comes from a file belongs to.
struct StateSource {
  const plan::Plan* plan = nullptr;  ///< one that require_supported lets pass
  kernels::KvFormat format;
  std::int64_t tokens = 0;                  ///< of the sequence
  std::span<const kv::HeadLayout> layouts;  ///< [layer, KV head], which require_layouts let pass
};

/// Fills the state of a new sequence of that plan. Throws UserError for what no run of the plan leaves behind.
void load_state(ByteReader& from, const StateSource& source, SequenceState& state);

/// Throws UserError for tables, [layer, KV head], that no run of the plan leaves behind: slots of heads that keep
/// everything, positions that do not ascend, streams with gaps elsewhere than behind the sink, heads that forget
/// together and did not.
void require_layouts(const ByteReader& from, const plan::Plan& plan, std::int64_t tokens,
                     std::span<const kv::HeadLayout> heads);

}  // namespace glimpse::attention
