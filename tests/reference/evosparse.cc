#include <algorithm>
#include <cmath>

#include "tests/reference/methods.h"

namespace glimpse::methods {
namespace {

struct Parts {
  std::vector<bool> fixed;  ///< [block]: sink or local
  std::int64_t paid = 0;    ///< blocks of them inside the budget
  std::vector<bool> held;   ///< [block] of the guide
  Set all;                  ///< every block
};

Parts parts_of(const EvoStep& step, const Set& guide) {
  const std::int64_t block = step.frame.block;
  const std::int64_t count = (step.tokens + block - 1) / block;
  Parts parts{
      std::vector<bool>(static_cast<std::size_t>(count)), 0, std::vector<bool>(static_cast<std::size_t>(count)), {}};
  for (std::int64_t b = 0; b < count; ++b) {
    // The local tokens in whole blocks, with the unfinished one.
    const bool sink = b * block < step.frame.sink;
    const bool local = (b + 1) * block > step.tokens - std::max<std::int64_t>(step.frame.local, 1);
    parts.fixed[static_cast<std::size_t>(b)] = sink || local;
    if (sink || (local && step.frame.counts_local)) ++parts.paid;
    parts.all.push_back(static_cast<std::int32_t>(b));
  }
  for (const std::int32_t i : guide) {
    if (i >= 0 && i < step.tokens) parts.held[static_cast<std::size_t>(i / block)] = true;
  }
  return parts;
}

/// Blocks that the heads propagate, sink and local left out, cut to what the budget leaves.
Set propagated(const EvoStep& step, const Parts& parts) {
  if (step.retrieval.empty()) return {};
  std::vector<Scores> heads;
  std::vector<bool> chosen(parts.all.size());
  for (const Scores& scores : step.retrieval) {
    heads.push_back(block_maximum(scores, step.frame.block));
    for (const std::int32_t b : best(heads.back(), parts.all, step.blocks_per_head, parts.held)) {
      chosen[static_cast<std::size_t>(b)] = true;
    }
  }
  Set candidates;
  for (const std::int32_t b : parts.all) {
    if (chosen[static_cast<std::size_t>(b)] && !parts.fixed[static_cast<std::size_t>(b)]) candidates.push_back(b);
  }
  const std::int64_t room = static_cast<std::int64_t>(step.frame.value) / step.frame.block - parts.paid;
  return best(maximum(heads), candidates, room, parts.held);
}

}  // namespace

EvoSettings evosparse_settings(std::int64_t budget) {
  struct Setting {
    double budget, local, blocks;
  };
  const Setting table[] = {{0, 0, 0}, {256, 64, 5}, {512, 64, 5}, {1024, 128, 7}, {2048, 128, 10}, {4096, 128, 15}};
  Setting at = table[5];
  for (int i = 0; i < 5; ++i) {
    const Setting &low = table[i], &high = table[i + 1];
    const auto k = static_cast<double>(budget);
    if (k < low.budget || k >= high.budget) continue;
    const double part = (k - low.budget) / (high.budget - low.budget);
    at = {k, low.local + part * (high.local - low.local), low.blocks + part * (high.blocks - low.blocks)};
  }
  // The window in whole blocks, downwards; blocks to the nearest number, below the first row downwards.
  const double blocks = budget < 256 ? std::floor(at.blocks) : std::floor(at.blocks + 0.5);
  return {static_cast<std::int64_t>(at.local / 16) * 16, std::max<std::int64_t>(1, static_cast<std::int64_t>(blocks))};
}

Set evosparse_propagated(const EvoStep& step, const Set& guide) {
  return propagated(step, parts_of(step, guide));
}

Set evosparse_set(const EvoStep& step, const Set& guide) {
  const Parts parts = parts_of(step, guide);
  std::vector<bool> in = parts.fixed;
  const Set from_heads = propagated(step, parts);
  for (const std::int32_t b : from_heads) in[static_cast<std::size_t>(b)] = true;
  if (step.accumulates) {
    Scores heat = step.heat;
    heat.resize(parts.all.size(), 0.0);
    Set rest;
    for (const std::int32_t b : parts.all) {
      if (!in[static_cast<std::size_t>(b)]) rest.push_back(b);
    }
    const std::int64_t left = static_cast<std::int64_t>(step.frame.value) / step.frame.block - parts.paid -
                              static_cast<std::int64_t>(from_heads.size());
    for (const std::int32_t b : best(heat, rest, left, parts.held)) in[static_cast<std::size_t>(b)] = true;
  }
  Set set;
  for (std::int64_t i = 0; i < step.tokens; ++i) {
    if (in[static_cast<std::size_t>(i / step.frame.block)]) set.push_back(static_cast<std::int32_t>(i));
  }
  return set;
}

Scores heat_after(const Scores& heat, const std::vector<Reading>& readings, std::int64_t block, double decay) {
  std::size_t blocks = heat.size();
  for (const Reading& reading : readings) {
    for (const std::int32_t i : reading.tokens) blocks = std::max(blocks, static_cast<std::size_t>(i / block) + 1);
  }
  Scores sum(blocks), readers(blocks);
  for (const Reading& reading : readings) {
    std::vector<bool> read(blocks);
    for (std::size_t n = 0; n < reading.tokens.size(); ++n) {
      const auto b = static_cast<std::size_t>(reading.tokens[n] / block);
      sum[b] += reading.probabilities[n];
      read[b] = true;
    }
    for (std::size_t b = 0; b < blocks; ++b) readers[b] += read[b] ? 1 : 0;
  }
  Scores after(blocks);
  for (std::size_t b = 0; b < blocks; ++b) {
    after[b] = (b < heat.size() ? decay * heat[b] : 0) + (readers[b] > 0 ? sum[b] / readers[b] : 0);
  }
  return after;
}

}  // namespace glimpse::methods
