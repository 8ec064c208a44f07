// EvoSparse: sets from heat and propagated blocks, and the heat that each step leaves, against the transcription. Each
// step starts from the engine's own heat.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/engine/recording.h"

namespace glimpse::engine {
namespace {

constexpr int kSteps = 16;
constexpr double kLambda = 0.99609375;  // the bf16 number nearest below 1
constexpr int kBlock = 16;
constexpr int kFirst = 2;  // layers 0 and 1 are dense and feed nothing

struct Case {
  std::string name;
  std::string budget;
  std::map<std::string, std::string> extra = {};
};

void PrintTo(const Case& row, std::ostream* out) {
  *out << row.name;
}

/// The layer's retrieval heads and how many blocks each takes, as the plan has them from its profile.
const plan::Term* retrieval_term(const plan::Plan& plan, int layer) {
  const plan::Role& role = plan.role(layer, 0);
  if (role.kind != plan::RoleKind::select) return nullptr;
  for (const plan::Term& term : plan.selectors.at(static_cast<std::size_t>(role.selector)).terms) {
    if (term.source == plan::Source::dot) return &term;
  }
  return nullptr;
}

/// The selector whose budget, sink and window a layer's set has.
const plan::Selector& selector_for(const plan::Plan& plan, int layer) {
  const plan::Role& role = plan.role(layer, 0);
  const plan::Role& owner = role.kind == plan::RoleKind::reuse ? plan.role(role.reads.layer, role.reads.head) : role;
  return plan.selectors.at(static_cast<std::size_t>(owner.selector));
}

methods::EvoStep evo_step(const Recording& run, const StepRecord& step, int layer) {
  const plan::ModelShape& shape = run.plan.shape;
  methods::EvoStep evo;
  evo.tokens = step.position + 1;
  evo.frame = frame_of(selector_for(run.plan, layer), evo.tokens);
  evo.accumulates = !step.before.heat.empty();
  if (evo.accumulates)
    evo.heat = step.before.heat.at(step.before.heat.size() > 1 ? static_cast<std::size_t>(layer) : 0);
  for (int from = layer; from >= kFirst; --from) {
    const plan::Term* term = retrieval_term(run.plan, from);
    if (term == nullptr) continue;
    evo.blocks_per_head = static_cast<std::int64_t>(term->budget.value().value) / kBlock;
    std::vector<int> heads = term->query_heads;
    for (int head = 0; head < shape.heads && term->query_heads.empty(); ++head) heads.push_back(head);
    for (const int head : heads) {
      const HeadStep& record = run.at(step, from, head / shape.group());
      evo.retrieval.push_back(methods::dots(record.queries.at(static_cast<std::size_t>(head % shape.group())),
                                            run.keys_at(step, from, head / shape.group())));
    }
    break;
  }
  return evo;
}

/// What every query head of a layer gave to what it read.
std::vector<methods::Reading> readings_of(const Recording& run, const StepRecord& step, int layer) {
  std::vector<methods::Reading> readings;
  for (int head = 0; head < run.plan.shape.kv_heads; ++head) {
    const HeadStep& record = run.at(step, layer, head);
    const methods::Rows keys = run.keys_at(step, layer, head);
    const std::int64_t tokens = step.position + 1;
    const methods::Set read = record.reads_all ? methods::sink_and_window(tokens, 0, tokens) : record.tokens;
    for (const methods::Row& query : record.queries) {
      readings.push_back({read, methods::read_probabilities(query, keys, read)});
    }
  }
  return readings;
}

std::vector<methods::Reading> readings_from(const Recording& run, const StepRecord& step, int first) {
  std::vector<methods::Reading> readings;
  for (int layer = first; layer < run.plan.shape.layers; ++layer) {
    for (methods::Reading& reading : readings_of(run, step, layer)) readings.push_back(std::move(reading));
  }
  return readings;
}

void expect_near(const methods::Scores& engine, const methods::Scores& expected, const std::string& where) {
  ASSERT_EQ(engine.size(), expected.size()) << where;
  for (std::size_t b = 0; b < engine.size(); ++b) {
    ASSERT_NEAR(engine[b], expected[b], 1e-5 * std::abs(expected[b]) + 1e-7) << where << ", block " << b;
  }
}

class EvoSparseSets : public testing::TestWithParam<Case> {};

TEST_P(EvoSparseSets, EqualTheTranscription) {
  const Case& row = GetParam();
  const Recording run = record_run("evosparse", budget(row.budget, row.extra));
  const plan::ModelShape& shape = run.plan.shape;
  int propagating = 0;
  for (int layer = kFirst; layer < shape.layers; ++layer) {
    const plan::Selector& selector = selector_for(run.plan, layer);
    if (run.plan.role(layer, 0).kind != plan::RoleKind::stream) {
      EXPECT_EQ(selector.block, kBlock);
    }
    EXPECT_EQ(selector.sink, 16);
    EXPECT_EQ(selector.budget, plan::parse_budget(row.budget));
    propagating += retrieval_term(run.plan, layer) != nullptr;
  }
  EXPECT_EQ(propagating > 0, row.name != "no_propagation");
  EXPECT_EQ(run.steps.at(0).before.heat.empty(), row.name == "no_accumulation");
  for (const StepRecord& step : run.steps) {
    for (int layer = 0; layer < shape.layers; ++layer) {
      if (layer < kFirst) {
        for (int head = 0; head < shape.kv_heads; ++head) EXPECT_TRUE(run.at(step, layer, head).reads_all);
        continue;
      }
      const methods::Set& set = run.at(step, layer, 0).tokens;
      if (run.at(step, layer, 0).role == plan::RoleKind::stream) {
        // Without heat, before the first retrieval head, nothing is left to choose by: the window takes the budget.
        ASSERT_EQ(row.name, "no_accumulation");
        const auto window = static_cast<std::int64_t>(plan::parse_budget(row.budget).value) - 16;
        ASSERT_EQ(set, methods::sink_and_window(step.position + 1, 16, window)) << place(step, layer, 0);
      } else {
        ASSERT_EQ(set, methods::evosparse_set(evo_step(run, step, layer), set)) << place(step, layer, 0);
      }
      // One set per layer, for retrieval heads too.
      for (int head = 0; head < shape.kv_heads; ++head) ASSERT_EQ(run.at(step, layer, head).tokens, set);
    }
  }
  EXPECT_EQ(run.steps.size(), static_cast<std::size_t>(kSteps));
}

TEST_P(EvoSparseSets, LeaveTheHeatOfTheTranscription) {
  const Case& row = GetParam();
  const Recording run = record_run("evosparse", budget(row.budget, row.extra));
  EXPECT_EQ(run.plan.heat.decay, kLambda);
  const bool per_layer = row.name == "heat_per_layer";
  if (row.name == "no_accumulation") {
    EXPECT_EQ(run.plan.feedback, plan::Feedback::none);
    return;
  }
  for (const StepRecord& step : run.steps) {
    ASSERT_EQ(step.after.heat.size(), per_layer ? static_cast<std::size_t>(run.plan.shape.layers) : 1u);
    if (!per_layer) {
      const auto expected = methods::heat_after(step.before.heat[0], readings_from(run, step, kFirst), kBlock, kLambda);
      expect_near(step.after.heat[0], expected, place(step, kFirst, 0));
      continue;
    }
    for (int layer = kFirst; layer < run.plan.shape.layers; ++layer) {
      const auto at = static_cast<std::size_t>(layer);
      const auto expected = methods::heat_after(step.before.heat[at], readings_of(run, step, layer), kBlock, kLambda);
      expect_near(step.after.heat[at], expected, place(step, layer, 0));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, EvoSparseSets,
                         testing::Values(Case{"default_256", "256"}, Case{"small", "192"},
                                         Case{"no_propagation", "192", {{"prop", "off"}}},
                                         Case{"no_accumulation", "192", {{"accum", "off"}}},
                                         Case{"heat_per_layer", "192", {{"heat", "layer"}}},
                                         Case{"unseeded", "192", {{"seed", "none"}}},
                                         Case{"local_beside", "160", {{"count-local", "off"}}}),
                         [](const auto& row) { return row.param.name; });

TEST(EvoSparseHeat, StartsAtZeroWithoutASeed) {
  const Recording run = record_run("evosparse", budget("192", {{"seed", "none"}}), {.steps = 1});
  for (const double heat : run.steps.at(0).before.heat.at(0)) EXPECT_EQ(heat, 0);
}

TEST(EvoSparseHeat, IsSeededByTheLastRowsOfThePrompt) {
  // The same rows decoded densely, one by one: other kernels than the prompt's, so the sums agree only roughly.
  constexpr int kRows = 32;
  const Recording run = record_run("evosparse", budget("192"), {.steps = 1});
  const Recording dense = record_run("full", {}, {.steps = kRows, .replayed = kRows});
  methods::Scores expected;
  for (const StepRecord& step : dense.steps) {
    expected = methods::heat_after(expected, readings_from(dense, step, kFirst), kBlock, kLambda);
  }
  const methods::Scores& heat = run.steps.at(0).before.heat.at(0);
  ASSERT_EQ(heat.size(), expected.size());
  double apart = 0, sum = 0;
  for (std::size_t b = 0; b < heat.size(); ++b) {
    apart += std::abs(heat[b] - expected[b]);
    sum += expected[b];
  }
  EXPECT_LT(apart, 0.03 * sum);
}

}  // namespace
}  // namespace glimpse::engine
