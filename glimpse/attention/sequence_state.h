// What attention keeps of one sequence between steps, beside its K and V: key indices, heat, statistics that evicting
// methods decide by, mean tokens of what streams dropped. A value owned by the sequence; the runner's threads write
// distinct heads of it during a pass. What is added here is saved with a session (saved_state.h), or follows from what
// is.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glimpse/attention/block_heat.h"
#include "glimpse/base/boundary.h"
#include "glimpse/base/copy_on_write.h"
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

/// The stamp of a prompt's token, which is never renewed and never goes.
inline constexpr float kPromptStamp = std::numeric_limits<float>::infinity();

/// Loaded gates by the path that plans name.
using GateFiles = std::map<std::string, std::shared_ptr<kv::Gates>>;

class SequenceState {
 public:
  SequenceState() = default;
  /// `gates` has every file that the plan names.
  explicit SequenceState(const plan::Plan& plan, const GateFiles& gates = {});
  SequenceState(SequenceState&&) noexcept = default;
  SequenceState& operator=(SequenceState&&) noexcept = default;
  SequenceState(const SequenceState& other);
  SequenceState& operator=(const SequenceState& other);

  std::size_t head(int layer, int kv_head) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(kv_heads_) + static_cast<std::size_t>(kv_head);
  }
  bool wants_low_rank() const { return wants_low_rank_; }
  /// Bytes that indices and factors of keys hold; factors that copies share count for each.
  std::size_t index_memory() const;
  /// For the state of a fork under plan `to`: takes over from the state of the same `tokens` under plan `from` what no
  /// plan changes, indices and low-rank keys that `to` would build alike (after a correction: as it left them), and the
  /// heat of a prompt behind which nothing is decoded, where `to` would have observed it alike.
  void take_over(const SequenceState& source, const plan::Plan& from, const plan::Plan& to, std::int64_t tokens);
  /// Whether all of `tokens`, the last of which came as prompt, are prompt. A prompt that comes in pieces is one
  /// prompt. One that comes after decoding is too where it doubles the text at least (what is made anew then costs no
  /// more than what was made before), and always where landmarks are read, which take in nothing but prompt. Else its
  /// tokens go into the indices as generated ones do.
  bool is_prompt(std::int64_t tokens, bool reads_landmarks) const;
  /// Between passes: the `tokens` that are there came as a prompt whose rest does not come. What is made of a prompt is
  /// made by the first step that reads it.
  void end_prompt(const plan::Plan& plan, std::int64_t tokens);
  /// Takes back the last step that was counted; `tokens` are left without it. Once for a step. The heat of a copy
  /// stays.
  void take_back_step(std::int64_t tokens);
  /// Makes the first `rows` rows of a verified draft part of the state, at a length of `tokens`, and forgets the rest
  /// of it. A row that no draft read, the last of a draft accepted whole, lets the heat fade and adds nothing.
  void commit_drafts(std::int64_t rows, std::int64_t tokens, double decay);
  /// Those of the plan, each once; shared by copies. The runner prepares them before a pass.
  std::span<const std::shared_ptr<kv::Gates>> gates() const { return gates_; }

  std::vector<std::unique_ptr<kv::KeyIndex>> indices;  ///< [layer, kv_head]; null where the role keeps none
  std::vector<int> key_ranks;                          ///< [layer] the largest that a head reads with; 0: none
  /// [layer] the prompt's keys; null before they are made. Shared by copies: nobody changes them.
  std::vector<std::shared_ptr<const kv::LowRankKeys>> low_rank;
  /// [layer, kv_head][position]: accumulated probability, the last step's mean probability, or the step of the last
  /// stamp (kPromptStamp: came as prompt), as the head's retention asks; empty where it asks nothing. Copies share it.
  std::vector<CopyOnWrite<std::vector<float>>> statistics;
  std::vector<std::vector<std::int64_t>> chosen_at;  ///< [layer, kv_head][page] last step; with a host tier
  std::vector<DroppedTokens> dropped;                ///< [layer, kv_head]; sums empty where nothing compensates
  std::vector<Boundary> boundaries;                  ///< [tokens] by the engine, when an index wants them
  std::int64_t prompt_tokens = 0;                    ///< tokens that came as prompt
  std::int64_t decode_steps = 0;
  BlockHeat heat;                       ///< none where the plan reads none
  std::vector<HeatGains> drafted_heat;  ///< of drafted steps, until they are committed

 private:
  int kv_heads_ = 0;
  bool wants_low_rank_ = false;
  std::vector<std::shared_ptr<kv::Gates>> gates_;
};

/// True when some index takes in nothing but prompt.
bool reads_landmarks(const plan::Plan& plan);

/// False for pages and gates: their index is the same whatever a token came as.
bool depends_on_prompt(const plan::Selector& selector);

/// True when the plan's indices read text boundaries.
bool wants_boundaries(const plan::Plan& plan);

}  // namespace glimpse::attention
