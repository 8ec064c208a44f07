// Stability of chosen units: plain loops over sets by the paper's formulas, and units worked out from a trace.
#include "glimpse/evaluate/unit_stability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "glimpse/evaluate/sets.h"
#include "glimpse/policies/policy.h"
#include "tests/support/models.h"

namespace glimpse::evaluate {
namespace {

using Units = std::vector<std::int32_t>;

/// Equations 3 and 4 with std::set, step by step; means over the steps from the second on.
struct ByFormula {
  std::vector<double> jaccards, hits;

  void add(const std::vector<Units>& steps, std::size_t window) {
    for (std::size_t t = 1; t < steps.size(); ++t) {
      const std::set<std::int32_t> now(steps[t].begin(), steps[t].end());
      std::set<std::int32_t> either(steps[t - 1].begin(), steps[t - 1].end()), recent;
      const double both =
          static_cast<double>(std::count_if(now.begin(), now.end(), [&](int unit) { return either.contains(unit); }));
      either.insert(now.begin(), now.end());
      for (std::size_t i = 1; i <= std::min(window, t); ++i) recent.insert(steps[t - i].begin(), steps[t - i].end());
      if (!either.empty()) jaccards.push_back(both / static_cast<double>(either.size()));
      double hit = 0;
      for (const std::int32_t unit : now) hit += recent.contains(unit) ? 1 : 0;
      if (!now.empty()) hits.push_back(hit / static_cast<double>(now.size()));
    }
  }

  static double mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
  }
};

TEST(UnitStability, OfAFewStepsByHand) {
  const std::vector<Units> steps{{1, 2, 3}, {2, 3, 4}, {1, 7}, {}, {}, {4}};
  // Jaccard 2/4, 0/5, 0/2, (neither), 0/1; hits of two steps 2/3, 1/2, (none), (none), 0/1.
  const Stability found = stability(steps, 2);
  EXPECT_EQ(found.jaccards, 4);
  EXPECT_EQ(found.windows, 3);
  EXPECT_DOUBLE_EQ(*found.jaccard(), 0.5 / 4);
  EXPECT_DOUBLE_EQ(*found.window_hit(), (2.0 / 3 + 0.5) / 3);
  EXPECT_DOUBLE_EQ(*stability(steps, 4).window_hit(), (2.0 / 3 + 0.5 + 1) / 3);
}

TEST(UnitStability, OfManyStepsByTheFormulas) {
  std::vector<Units> steps;
  std::uint32_t state = 7;
  for (int t = 0; t < 120; ++t) {
    std::set<std::int32_t> units;
    for (int i = 0; i < 6; ++i) {
      state = state * 1664525U + 1013904223U;
      units.insert(static_cast<std::int32_t>(t / 10 + (state >> 16) % 150));
    }
    steps.emplace_back(units.begin(), units.end());
  }
  for (const int window : {1, 2, kStabilityWindow, 500}) {
    ByFormula expected;
    expected.add(steps, static_cast<std::size_t>(window));
    const Stability found = stability(steps, window);
    EXPECT_NEAR(*found.jaccard(), ByFormula::mean(expected.jaccards), 1e-12);
    EXPECT_NEAR(*found.window_hit(), ByFormula::mean(expected.hits), 1e-12) << window;
  }
  EXPECT_LT(*stability(steps, 1).window_hit(), *stability(steps, kStabilityWindow).window_hit());
  EXPECT_LT(*stability(steps, kStabilityWindow).window_hit(), *stability(steps, 500).window_hit());
}

TEST(UnitStability, NothingBeforeTheSecondStepOrAcrossAnInterruption) {
  const std::vector<Units> one{{1, 2}};
  EXPECT_FALSE(stability(one).jaccard());
  EXPECT_FALSE(stability(one).window_hit());
  UnitHistory history;
  history.add({1, 2});
  history.interrupt();
  history.add({1, 2});
  EXPECT_FALSE(history.stability().jaccard());
  history.add({1, 3});
  EXPECT_DOUBLE_EQ(*history.stability().jaccard(), 1.0 / 3);
  EXPECT_DOUBLE_EQ(*history.stability().window_hit(), 0.5);
}

constexpr std::int64_t kPrompt = 150;

/// 40 steps, more than the window.
Stability units_of(std::string_view policy, int budget, const SetsCallbacks& callbacks) {
  engine::EngineOptions options;
  options.model = reference::test_model("llama");
  options.context = 256;
  options.threads = 2;
  engine::Engine engine(options);
  policies::PolicyOptions how;
  how.budget = plan::Budget{plan::BudgetRule::tokens, static_cast<double>(budget)};
  std::vector<Token> tokens;
  for (int i = 0; i < kPrompt + 40; ++i) tokens.push_back(260 + (i * 37 + i * i) % 250);
  const plan::Plan plan = policies::make_plan(policy, engine.shape(), how);
  return run_sets(engine, plan, {tokens, kPrompt}, callbacks).units;
}

const auto kIgnoreToken = [](Token) {};
const auto kGoOn = [](const engine::AttentionStats&) { return true; };

TEST(UnitStability, OfQuestAreThePagesOfItsTrace) {
  constexpr std::int32_t kPage = 16;
  std::map<std::pair<int, int>, std::vector<Units>> heads;
  const SetsCallbacks callbacks{kIgnoreToken,
                                [&](const engine::SetTrace& trace, double) {
                                  if (trace.role != plan::RoleKind::select) return;
                                  ASSERT_FALSE(trace.publishes_all);
                                  std::set<std::int32_t> pages;
                                  for (const std::int32_t token : trace.published) pages.insert(token / kPage);
                                  // The current token's page is in every set.
                                  ASSERT_EQ(pages.erase(static_cast<std::int32_t>(trace.position) / kPage), 1U);
                                  heads[{trace.layer, trace.kv_head}].emplace_back(pages.begin(), pages.end());
                                },
                                kGoOn};
  const Stability found = units_of("quest", 64, callbacks);
  ByFormula expected;
  for (const auto& [head, steps] : heads) expected.add(steps, kStabilityWindow);
  ASSERT_FALSE(expected.jaccards.empty());
  EXPECT_EQ(found.jaccards, static_cast<std::int64_t>(expected.jaccards.size()));
  EXPECT_EQ(found.windows, static_cast<std::int64_t>(expected.hits.size()));
  EXPECT_NEAR(*found.jaccard(), ByFormula::mean(expected.jaccards), 1e-12);
  EXPECT_NEAR(*found.window_hit(), ByFormula::mean(expected.hits), 1e-12);
  EXPECT_LT(*found.jaccard(), 1);
  EXPECT_GT(*found.jaccard(), 0);
}

TEST(UnitStability, IsSilentWithoutAnIndexAndWhereEverythingIsRead) {
  const SetsCallbacks callbacks{kIgnoreToken, [](const engine::SetTrace&, double) {}, kGoOn};
  EXPECT_FALSE(units_of("tidal", 32, callbacks).jaccard());
  EXPECT_FALSE(units_of("quest", 250, callbacks).jaccard());
}

}  // namespace
}  // namespace glimpse::evaluate
