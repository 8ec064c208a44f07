// From scores to a set: pooling over the group or the layer, the budget, the tokens that are always in. Pure
// functions on views; workspace is passed in and grows only with the context. One thread per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/sets.h"
#include "glimpse/kernels/choose.h"
#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// Scratch of one selecting thread, kept between steps.
struct SelectionScratch : kernels::SelectSpace {
  std::vector<char> taken;          ///< [units]
  std::vector<float> most;          ///< [units] the largest score over heads
  std::vector<ScoredUnit> ranked;   ///< candidates of several heads, head by head
  std::vector<std::size_t> starts;  ///< where each head's begin
};

/// Units (tokens or blocks) that are in the set whatever the scores say: [0, head) and [tail, count).
struct Always {
  std::size_t head = 0;
  std::size_t tail = 0;
};
Always always_units(const plan::Selector& selector, std::size_t tokens);

/// How a term pools scores over the group and over the heads of a layer.
void set_pooling(const plan::Term& term, kernels::Choice& choice);
/// What a selector asks of the scores of so many tokens: sink, local window and current token, filled up from the best
/// within the budget (methods.md section 1). Whose scores they are says SelectOp::place.
kernels::Choice choice_of(const plan::Selector& selector, std::size_t tokens);

using kernels::HeadScores;

/// LessIsMore: the best of every query head rank by rank, until the budget is full. What is always in the set has no
/// rank.
void choose_by_rank(const plan::Selector& selector, std::span<const HeadScores> heads, std::size_t tokens,
                    SelectionScratch& scratch, std::vector<std::int32_t>& set);

/// What the terms of a layer's set may choose from.
struct Candidates {
  std::size_t tokens = 0;                 ///< N
  std::span<const HeadScores> heads;      ///< per KV head: scores of the first term's query heads
  std::span<const ScoredUnit> inherited;  ///< of an earlier layer, best first
  std::span<const float> heat;            ///< [blocks]
};
/// True when a set is a union of candidates: several terms, terms with a budget of their own, or heat.
bool is_union(const plan::Selector& selector);
/// EvoSparse (section 3): sink, local, what was inherited and what the scoring heads choose, then heat. Writes the
/// set, and to `chosen` what was chosen by score.
void choose_union(const plan::Selector& selector, const Candidates& from, SelectionScratch& scratch,
                  std::vector<std::int32_t>& set, std::vector<ScoredUnit>& chosen);

/// True when a prompt tile scores by its mean query, so that it needs no log-sum-exps of its rows.
bool pools_queries(const plan::Term& term);

/// The positions that a streaming head reads at a context of `tokens`: sink and local window, ascending. Replaces
/// `set`.
void window_positions(const plan::Selector& window, std::int64_t tokens, std::vector<std::int32_t>& set);

/// How many query heads of a KV head score for a term.
int scoring_queries(const plan::Term& term, int kv_head, int group);

/// A prompt tile's set: the best of `pooled` [tokens before the tile] within `budget` tokens; sink and the last
/// `local` before the tile are in it, nothing else is forced.
void choose_before_tile(const plan::Selector& selector, std::int64_t budget, std::span<float> pooled,
                        SelectionScratch& scratch, std::vector<std::int32_t>& set);

}  // namespace glimpse::attention
