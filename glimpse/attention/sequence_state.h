// What attention keeps of one sequence between steps, beside its K and V: published sets, key indices, heat,
// statistics that evicting methods decide by, mean tokens of what streams dropped. A value owned by the sequence; the
// runner's threads write distinct heads of it during a pass. What is added here is saved with a session
// (saved_state.h), or follows from what is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/attention/sets.h"
#include "glimpse/base/boundary.h"
#include "glimpse/kv/index/key_index.h"
#include "glimpse/kv/index/low_rank_keys.h"
#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// RazorAttention's compensation token of one head: sums over the tokens that left the window.
struct DroppedTokens {
  std::vector<double> k_sum, v_sum;  ///< [d]
  std::int64_t first = 0;            ///< the sink's end: positions before it are always read
  std::int64_t end = 0;              ///< positions [first, end) are in the sums
};

class SequenceState {
 public:
  SequenceState() = default;
  explicit SequenceState(const plan::Plan& plan);
  SequenceState(SequenceState&&) noexcept = default;
  SequenceState& operator=(SequenceState&&) noexcept = default;
  SequenceState(const SequenceState& other);
  SequenceState& operator=(const SequenceState& other);

  std::size_t head(int layer, int kv_head) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(kv_heads_) + static_cast<std::size_t>(kv_head);
  }
  /// Heat of the blocks for a layer: [blocks], grown by the runner. Empty when the plan reads none.
  std::vector<float>& heat(int layer) { return heat_[heat_.size() > 1 ? static_cast<std::size_t>(layer) : 0]; }
  const std::vector<float>& heat(int layer) const { return const_cast<SequenceState&>(*this).heat(layer); }
  bool has_heat() const { return !heat_.empty(); }
  int heat_block() const { return heat_block_; }
  bool wants_low_rank() const { return wants_low_rank_; }

  PublishedSets sets;
  std::vector<std::unique_ptr<kv::KeyIndex>> indices;  ///< [layer, kv_head]; null where the role keeps none
  std::vector<int> key_ranks;                          ///< [layer] the largest that a head reads with; 0: none
  /// [layer] the prompt's keys; null before they are made. Shared by copies: nobody changes them.
  std::vector<std::shared_ptr<const kv::LowRankKeys>> low_rank;
  /// [layer, kv_head][position]: accumulated probability, the last step's mean probability, or the step of the last
  /// stamp, as the head's retention asks; empty where it asks nothing.
  std::vector<std::vector<float>> statistics;
  std::vector<std::vector<std::int64_t>> chosen_at;  ///< [layer, kv_head][page] last step; with a host tier
  std::vector<DroppedTokens> dropped;                ///< [layer, kv_head]; sums empty where nothing compensates
  std::vector<Boundary> boundaries;                  ///< [tokens] by the engine, when an index wants them
  std::int64_t prompt_tokens = 0;                    ///< tokens that came as prompt
  std::int64_t decode_steps = 0;

 private:
  int kv_heads_ = 0;
  int heat_block_ = 1;
  bool wants_low_rank_ = false;
  std::vector<std::vector<float>> heat_;  ///< [1 or layers][blocks]
};

/// True when the plan's indices read text boundaries.
bool wants_boundaries(const plan::Plan& plan);

}  // namespace glimpse::attention
