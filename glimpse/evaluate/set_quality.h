// How good the sets are that heads read in a decode step: the softmax mass they capture and the share of the true best
// tokens in them, in double from the cached keys and the query. Keys that a head forgot are kept here, so that what a
// method threw away counts against it. Owns its copies; one thread, but SetSample::watch's callback runs on the
// engine's pool, one call at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "glimpse/engine/engine.h"

namespace glimpse::evaluate {

/// All keys of a text as one sequence cached them, also after it forgot some.
class KeyHistory {
 public:
  explicit KeyHistory(const plan::ModelShape& shape);
  /// Notes the keys of all positions from the last one noted up to the sequence's end.
  void follow(const engine::Sequence& sequence);
  /// Takes the sequence's own keys wherever it has them: its prefill may be another one than what was followed.
  void replace(const engine::Sequence& sequence);
  std::int64_t tokens() const { return tokens_; }
  std::span<const float> keys(int layer, int kv_head) const;  ///< [tokens, d]

 private:
  std::size_t place(int layer, int kv_head) const;
  int layers_, kv_heads_, head_dim_;
  std::int64_t tokens_ = 0;
  std::vector<std::vector<float>> keys_;  ///< [layer, kv_head][tokens, d]
};

/// What one KV head read in one step.
struct HeadSets {
  int layer = 0, kv_head = 0;
  std::vector<std::vector<std::int32_t>> sets;  ///< one for the group, or one for each query head
  std::vector<float> query;                     ///< [g, d] after RoPE
};

/// Sums over (step, layer, query head) of what read a set. The mass of the true best tokens, as many as the set
/// holds, bounds that of any method.
struct SetQuality {
  double mass = 0, best_mass = 0, recall = 0, tokens = 0;
  std::int64_t count = 0;
  SetQuality& operator+=(const SetQuality& other);
  /// Means; none without a set.
  std::optional<double> mean_tokens() const;
  /// Of the mass of the best tokens, what the sets hold.
  std::optional<double> mass_recall() const;
  /// Of the best tokens, what the sets hold.
  std::optional<double> token_recall() const;
};

/// Of one head, by the softmax over all `keys` [tokens, d] with scores q.k / sqrt(d), in double.
SetQuality quality(const HeadSets& head, std::span<const float> keys, int head_dim);

/// Collects what the heads of a sequence read in its next steps.
class SetSample {
 public:
  void watch(engine::Sequence& sequence);
  static void stop(engine::Sequence& sequence) { sequence.on_sets({}); }
  /// Of the steps since the last call; forgets them. Heads that read everything are not in it.
  SetQuality take(const KeyHistory& keys, int head_dim);

 private:
  std::vector<HeadSets> heads_;
};

}  // namespace glimpse::evaluate
