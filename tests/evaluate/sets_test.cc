// Sets of a forced text, and the mass they capture: against a sequence driven by hand and plain loops over its keys.
#include "glimpse/evaluate/sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "glimpse/base/error.h"
#include "tests/evaluate/forced_text.h"

namespace glimpse::evaluate {
namespace {

constexpr std::int64_t kPrompt = 90, kSteps = 5;

/// What one head read in one step, and the mass it captured.
struct Head {
  int layer = 0, kv_head = 0;
  std::int64_t position = 0;
  bool reads_all = false;
  std::vector<std::int32_t> tokens;
  double coverage = 0;
  /// A set of each query head, or one for all; of each query head the mass of as many best tokens, and how many of
  /// these are in its set.
  std::vector<std::set<std::int32_t>> sets = {};
  std::vector<double> best_mass = {};
  std::vector<int> best_read = {};
  friend bool operator==(const Head&, const Head&) = default;
};

Head head_of(const engine::SetTrace& trace) {
  Head head{trace.layer, trace.kv_head, trace.position, trace.reads_all, {}};
  head.tokens.assign(trace.tokens.begin(), trace.tokens.end());
  return head;
}

/// The same, by hand. `dense` has the keys that `sequence` forgot.
std::vector<Head> by_hand(engine::Engine& engine, const plan::Plan& plan, const std::vector<Token>& tokens) {
  const plan::ModelShape shape = engine.shape();
  const std::span<const Token> prompt = std::span(tokens).first(kPrompt);
  std::map<std::tuple<int, int, std::int64_t>, std::vector<float>> keys;
  const auto note = [&](const engine::Sequence& sequence, bool replace) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (const std::int32_t position : sequence.live(layer, head)) {
          auto& key = keys[{layer, head, position}];
          if (key.empty() || replace) key = sequence.key(layer, head, position);
        }
      }
    }
  };
  {
    engine::Sequence dense = engine.open(plan::dense_plan(shape));
    dense.prefill(prompt);
    note(dense, false);
  }
  engine::Sequence sequence = engine.open(plan);
  sequence.prefill(prompt);
  note(sequence, true);
  std::vector<Head> heads;
  std::vector<std::pair<std::vector<float>, std::vector<std::vector<std::int32_t>>>> asked;
  sequence.on_sets([&](const engine::SetTrace& trace) {
    heads.push_back(head_of(trace));
    std::vector<std::vector<std::int32_t>> sets(trace.query_sets.begin(), trace.query_sets.end());
    asked.emplace_back(std::vector<float>(trace.query.begin(), trace.query.end()), std::move(sets));
  });
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::size_t first = heads.size();
    sequence.decode(tokens[static_cast<std::size_t>(kPrompt + step)]);
    note(sequence, false);
    for (std::size_t i = first; i < heads.size(); ++i) {
      Head& head = heads[i];
      const auto& [query, sets] = asked[i];
      for (int g = 0; g < shape.group(); ++g) {
        double total = 0, read = 0;
        std::vector<double> weights;
        for (std::int64_t t = 0; t <= head.position; ++t) {
          const std::vector<float>& key = keys.at({head.layer, head.kv_head, t});
          double dot = 0;
          for (int d = 0; d < shape.head_dim; ++d) {
            dot += static_cast<double>(query[static_cast<std::size_t>(g * shape.head_dim + d)]) *
                   key[static_cast<std::size_t>(d)];
          }
          const double weight = std::exp(dot / std::sqrt(static_cast<double>(shape.head_dim)));
          const auto& set = sets.empty() ? head.tokens : sets[static_cast<std::size_t>(g)];
          weights.push_back(weight);
          total += weight;
          if (head.reads_all || std::find(set.begin(), set.end(), t) != set.end()) read += weight;
        }
        head.coverage += read / total / shape.group();
        if (head.reads_all) continue;
        const auto& list = sets.empty() ? head.tokens : sets[static_cast<std::size_t>(g)];
        const std::set<std::int32_t> set(list.begin(), list.end());
        std::vector<std::int32_t> order(weights.size());
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
          return weights[static_cast<std::size_t>(a)] > weights[static_cast<std::size_t>(b)];
        });
        order.resize(set.size());
        double mass = 0;
        int found = 0;
        for (const std::int32_t best : order) {
          mass += weights[static_cast<std::size_t>(best)] / total;
          found += set.contains(best) ? 1 : 0;
        }
        head.best_mass.push_back(mass);
        head.best_read.push_back(found);
        if (!sets.empty() || g == 0) head.sets.push_back(set);
      }
    }
  }
  return heads;
}

/// The statistics of one head from its steps.
void expect_reads(const HeadReads& reads, const std::vector<Head>& steps) {
  double coverage = 0, least = 1, mass = 0, best_mass = 0, recall = 0, tokens = 0, jaccard = 0, hit = 0;
  int count = 0, sparse = 0, pairs = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Head& step = steps[i];
    coverage += step.coverage;
    least = std::min(least, step.coverage);
    if (step.reads_all) continue;
    ++sparse;
    const std::size_t group = step.best_mass.size();
    mass += step.coverage * static_cast<double>(group);
    for (std::size_t g = 0; g < group; ++g) {
      const auto size = static_cast<double>(step.sets[step.sets.size() == 1 ? 0 : g].size());
      best_mass += step.best_mass[g];
      recall += step.best_read[g] / size;
      tokens += size;
      ++count;
    }
    // Far fewer steps than the window has, so it reaches back to the last step that read everything.
    std::size_t from = i;
    while (from > 0 && !steps[from - 1].reads_all) --from;
    for (std::size_t g = 0; from < i && g < step.sets.size(); ++g) {
      const auto before = [&](std::size_t at, std::int32_t token) { return steps[at].sets[g].contains(token); };
      int both = 0, hits = 0;
      for (const std::int32_t token : step.sets[g]) {
        both += before(i - 1, token) ? 1 : 0;
        bool seen = false;
        for (std::size_t at = from; at < i; ++at) seen = seen || before(at, token);
        hits += seen ? 1 : 0;
      }
      const auto mine = static_cast<double>(step.sets[g].size());
      jaccard += both / (mine + static_cast<double>(steps[i - 1].sets[g].size()) - both);
      hit += hits / mine;
      ++pairs;
    }
  }
  EXPECT_EQ(reads.steps, std::ssize(steps));
  EXPECT_EQ(reads.sparse_steps, sparse);
  EXPECT_NEAR(reads.coverage, coverage, 1e-5);
  EXPECT_NEAR(reads.coverage_least, least, 1e-6);
  ASSERT_EQ(reads.sets.mean_tokens().has_value(), sparse > 0);
  ASSERT_EQ(reads.tokens.jaccard().has_value(), pairs > 0);
  if (sparse > 0) {
    EXPECT_NEAR(*reads.sets.mean_tokens(), tokens / count, 1e-9);
    EXPECT_NEAR(*reads.sets.mass_recall(), mass / best_mass, 1e-6);
    EXPECT_NEAR(*reads.sets.token_recall(), recall / count, 1e-9);
  }
  if (pairs > 0) {
    EXPECT_NEAR(*reads.tokens.jaccard(), jaccard / pairs, 1e-9);
    EXPECT_NEAR(*reads.tokens.window_hit(), hit / pairs, 1e-9);
  }
}

void expect_as_by_hand(engine::Engine& engine, const plan::Plan& plan) {
  SCOPED_TRACE(plan.policy);
  const std::vector<Token> tokens = some_tokens(kPrompt + kSteps);
  std::vector<Head> heads;
  std::vector<Token> fed;
  std::vector<std::int64_t> bytes;
  SetsCallbacks callbacks;
  callbacks.on_token = [&](Token token) { fed.push_back(token); };
  callbacks.on_head = [&](const engine::SetTrace& trace, double coverage) {
    heads.push_back(head_of(trace));
    heads.back().coverage = coverage;
  };
  callbacks.on_step = [&](const engine::AttentionStats& stats) {
    bytes.push_back(stats.bytes_read);
    return true;
  };
  const SetsResult result = run_sets(engine, plan, {tokens, kPrompt}, callbacks);
  const std::vector<Head> expected = by_hand(engine, plan, tokens);
  EXPECT_EQ(fed, std::vector<Token>(tokens.begin() + kPrompt, tokens.end()));
  EXPECT_EQ(result.steps, kSteps);
  ASSERT_EQ(heads.size(), expected.size());
  double sum = 0, least = 1;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    EXPECT_NEAR(heads[i].coverage, expected[i].coverage, 1e-6) << i;
    sum += expected[i].coverage;
    least = std::min(least, expected[i].coverage);
    heads[i].coverage = expected[i].coverage;
    heads[i].sets = expected[i].sets;
    heads[i].best_mass = expected[i].best_mass;
    heads[i].best_read = expected[i].best_read;
    EXPECT_EQ(heads[i], expected[i]) << i;
  }
  EXPECT_NEAR(*result.coverage_mean, sum / static_cast<double>(heads.size()), 1e-6);
  EXPECT_NEAR(*result.coverage_min, least, 1e-6);
  const plan::ModelShape shape = engine.shape();
  ASSERT_EQ(std::ssize(result.heads), shape.layers * shape.kv_heads);
  for (std::size_t i = 0; i < result.heads.size(); ++i) {
    SCOPED_TRACE(i);
    std::vector<Head> steps;
    for (const Head& head : expected) {
      if (head.layer * shape.kv_heads + head.kv_head == static_cast<int>(i)) steps.push_back(head);
    }
    expect_reads(result.heads[i], steps);
  }
  ASSERT_EQ(bytes.size(), static_cast<std::size_t>(kSteps));
  EXPECT_EQ(bytes.back(), result.attention.bytes_read);
  EXPECT_TRUE(std::is_sorted(bytes.begin(), bytes.end()));
}

TEST(Sets, CoverageIsTheMassOfPlainLoops) {
  engine::Engine engine = small_engine();
  expect_as_by_hand(engine, plan_of(engine, "tidal", 16));
  expect_as_by_hand(engine, plan_of(engine, "tidal", 16, {{"set", "query-head"}}));
  expect_as_by_hand(engine, plan_of(engine, "quest", 48));
}

TEST(Sets, WhatAHeadForgotCountsAgainstIt) {
  engine::Engine engine = small_engine();
  expect_as_by_hand(engine, plan_of(engine, "streaming", 24));
  expect_as_by_hand(engine, plan_of(engine, "h2o", 32));
}

TEST(Sets, ABudgetOverTheContextCapturesAll) {
  engine::Engine engine = small_engine();
  const std::vector<Token> tokens = some_tokens(kPrompt + kSteps);
  const SetsResult result = run_sets(
      engine, plan_of(engine, "tidal", 250), {tokens, kPrompt},
      {[](Token) {}, [](const engine::SetTrace&, double) {}, [](const engine::AttentionStats&) { return true; }});
  EXPECT_EQ(*result.coverage_mean, 1);
  EXPECT_EQ(*result.coverage_min, 1);
  EXPECT_EQ(result.attention.kept_ratio(), 1);
}

TEST(Sets, EndsWhereTheCallbackSaysAndRefusesAPromptOutsideTheText) {
  engine::Engine engine = small_engine();
  const std::vector<Token> tokens = some_tokens(kPrompt + kSteps);
  int steps = 0;
  const SetsCallbacks callbacks{[](Token) {}, [](const engine::SetTrace&, double) {},
                                [&](const engine::AttentionStats&) { return ++steps < 2; }};
  const plan::Plan plan = plan_of(engine, "tidal", 16);
  EXPECT_EQ(run_sets(engine, plan, {tokens, kPrompt}, callbacks).steps, 2);
  EXPECT_THROW(run_sets(engine, plan, {tokens, 0}, callbacks), UserError);
  EXPECT_THROW(run_sets(engine, plan, {tokens, kPrompt + kSteps}, callbacks), UserError);
}

}  // namespace
}  // namespace glimpse::evaluate
