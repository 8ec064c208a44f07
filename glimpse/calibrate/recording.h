// What dense attention asks for in the last tokens of a text: the queries of every head, and the sequence that holds
// the keys. The softmax over them is made again one layer at a time, so memory is that of a layer. Moves only; the
// engine outlives it; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/engine/engine.h"
#include "glimpse/evaluate/thread_team.h"

namespace glimpse::calibrate {

using engine::Token;

/// The recorded tokens are fed one by one: a step is the query of one of them.
struct Recording {
  engine::Sequence sequence;                ///< all tokens, dense
  std::int64_t first = 0;                   ///< position of step 0
  int steps = 0;                            ///< the last token of the sequence is that of the last step
  std::vector<std::vector<float>> queries;  ///< [layer][step, head, d] after RoPE
  std::vector<Token> next;                  ///< [step] the token that follows it
  std::vector<std::int32_t> needle;         ///< positions of what an answer copies, ascending; none: nothing is asked
  int answer = 0;                           ///< the first step whose `next` belongs to the answer
};

/// Feeds tokens[first..] but the last to a fork of `dense`, which holds tokens[0..first) at least; the last is only
/// `next` of the step before. Throws what a decoding call throws.
Recording record(const engine::Sequence& dense, const plan::ModelShape& shape, std::span<const Token> tokens,
                 std::int64_t first);

/// One layer's probabilities.
struct LayerAttention {
  int steps = 0, heads = 0;
  std::int64_t tokens = 0;
  std::vector<float> probability;  ///< [step, head, token]; 0 behind the step's own position

  std::span<const float> row(int step, int head) const {
    const auto width = static_cast<std::size_t>(tokens);
    return std::span(probability).subspan(static_cast<std::size_t>(step * heads + head) * width, width);
  }
};

/// softmax(q.k / sqrt(d)) over all tokens up to each step's own, from the cached keys, which this thread reads; the
/// rest is the team's work, if there is one.
LayerAttention attention_of(const Recording& recording, const plan::ModelShape& shape, int layer,
                            evaluate::ThreadTeam* team = nullptr);

/// The mean over each KV head's group: [step, KV head, token].
LayerAttention pooled(const LayerAttention& attention, int kv_heads, evaluate::ThreadTeam* team = nullptr);

}  // namespace glimpse::calibrate
