// From scores to a set: pooling over the group or the layer, the budget, the tokens that are always in. Pure
// functions on views; workspace is passed in and grows only with the context. One thread per call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/plan/plan.h"

namespace glimpse::attention {

/// Scratch of one selecting thread, kept between steps.
struct SelectionScratch {
  std::vector<float> pooled;         ///< [N], of all heads summed for SetPer::layer
  std::vector<float> head_pooled;    ///< [N]
  std::vector<float> blocks;         ///< [blocks]
  std::vector<std::int32_t> chosen;  ///< [N]
  std::vector<std::byte> workspace;
  void reserve(std::size_t tokens);
};

/// Scores of one KV head: query head j's score of token i at scores[j * stride + i], and its log-sum-exp.
struct HeadScores {
  const float* scores = nullptr;
  std::size_t stride = 0;
  const float* lse = nullptr;  ///< [g]
  int group = 1;
};

/// pooled[i] for one head and term, i in [0, tokens).
void pool_group(const plan::Term& term, const HeadScores& head, std::span<float> pooled);

/// Pools over all heads of a layer (Term::heads).
void pool_layer(const plan::Term& term, std::span<const HeadScores> heads, SelectionScratch& scratch,
                std::span<float> pooled);

/// The set for pooled scores over tokens [0, N): sink, local window and current token, filled up from the best
/// scores within the budget (methods.md section 1). `pooled` is overwritten. Writes ascending positions.
void choose(const plan::Selector& selector, std::span<float> pooled, SelectionScratch& scratch,
            std::vector<std::int32_t>& set);

}  // namespace glimpse::attention
