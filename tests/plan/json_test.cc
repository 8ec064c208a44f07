#include <gmock/gmock.h>

#include <optional>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/plan/plan.h"
#include "random_plan.h"

namespace glimpse::plan {
namespace {

using testing::HasSubstr;

constexpr std::string_view kSample = R"({
  "glimpse_plan": 1,
  "policy": "hand",
  "min_context": 100,
  "shape": {"architecture": "llama", "model_name": "m", "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 64, "context": 4096},
  "selectors": [
    {"budget": "10%,min=16", "terms": [{"source": "probability", "group": "mean-probability"}]}
  ],
  "layers": [
    {"layers": [0, 0], "heads": [{"role": "dense"}]},
    {"layers": [1, 1], "heads": [{"role": "select", "selector": 0, "attends": "set"}]},
    {"layers": [2, 2], "heads": [{"role": "reuse", "reads": {"layer": 1}}, {"role": "reuse", "reads": {"layer": 1, "head": 0}}]}
  ]
})";

std::string replaced(std::string_view from, std::string_view to) {
  std::string text(kSample);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanJson, ReadsAPlanWrittenByHand) {
  const Plan plan = from_json(kSample);
  EXPECT_EQ(plan.policy, "hand");
  EXPECT_EQ(plan.min_context, 100);
  EXPECT_EQ(plan.selectors.at(0).budget, (Budget{BudgetRule::ratio, 0.1, 16}));
  EXPECT_EQ(plan.role(0, 1).kind, RoleKind::dense);
  EXPECT_TRUE(plan.role(1, 1).attends_set);
  EXPECT_EQ(plan.role(2, 0).reads, (SlotId{1, 0}));
  EXPECT_EQ(plan.role(2, 1).reads, (SlotId{1, 0}));
}

TEST(PlanJson, IsEqualAfterARoundTrip) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const Plan plan = random_plan(seed);
    const std::string text = to_json(plan);
    ASSERT_EQ(from_json(text), plan) << "seed " << seed << "\n" << text;
    ASSERT_EQ(to_json(from_json(text)), text) << "seed " << seed;
  }
}

TEST(PlanJson, ReadsCoverageAsMass) {
  const std::string by_mass = replaced("10%,min=16", "p=0.9"), by_coverage = replaced("10%,min=16", "coverage=0.9");
  EXPECT_EQ(from_json(by_coverage), from_json(by_mass));
}

TEST(PlanJson, WritesRunsOfLayers) {
  Plan plan = dense_plan({"llama", "", 80, 64, 8, 128, 131072});
  const std::string text = to_json(plan);
  EXPECT_THAT(text, HasSubstr(R"({"layers":[0,79],"heads":[{"role":"dense"}]})"));
  EXPECT_LT(text.size(), 500u);
}

TEST(PlanJson, RefusesToWriteWhatCannotRun) {
  Plan plan = dense_plan({"llama", "", 2, 2, 1, 64, 100});
  plan.role(1, 0).kind = RoleKind::reuse;
  EXPECT_THROW(to_json(plan), UserError);
}

TEST(PlanJson, RefusesEachBadTextNamingThePath) {
  const std::string many(200, '[');
  const struct {
    std::string text;
    std::string says;
  } cases[] = {
      {"", "not valid JSON"},
      {"null", "$: expected an object, found null"},
      {"[]", "$: expected an object, found array"},
      {"7", "$: expected an object, found number"},
      {"{", "not valid JSON"},
      {"{}", "'glimpse_plan' is missing"},
      {std::string(kSample) + "x", "not valid JSON"},
      {"\xff\xfe", "not valid JSON"},
      {std::string(kSample).append({'\0', '{'}), "is zero"},
      {many, "nested deeper"},
      {std::string(5u << 20, ' '), "over the limit"},
      {replaced("\"glimpse_plan\": 1", "\"glimpse_plan\": 2"), "$.glimpse_plan: version 2"},
      {replaced("\"glimpse_plan\": 1", "\"glimpse_plan\": 1.0"), "expected a whole number"},
      {replaced("\"glimpse_plan\": 1", "\"glimpse_plan\": \"1\""), "expected a whole number, found string"},
      {replaced("\"policy\": \"hand\",", ""), "'policy' is missing"},
      {replaced("\"hand\"", "5"), "$.policy: expected a string"},
      {replaced("\"hand\"", "\"\""), "policy: give a name"},
      {replaced("\"policy\"", "\"polcy\""), "'policy' is missing"},
      {replaced("\"min_context\"", "\"min_contex\""), "unknown key 'min_contex'; did you mean 'min_context'"},
      {replaced("\"min_context\": 100", "\"policy\": \"again\""), "'policy' is given twice"},
      {replaced("\"min_context\": 100", "\"min_context\": -1"), "min_context = -1"},
      {replaced("\"min_context\": 100", "\"min_context\": 1e3"), "$.min_context: expected a whole number"},
      {replaced("\"min_context\": 100", "\"min_context\": 99999999999"), "$.min_context: 99999999999 is out of range"},
      {replaced("\"min_context\": 100", "\"min_context\": 18446744073709551615"), "out of range"},
      {replaced("\"min_context\": 100", "\"min_context\": -9223372036854775808"), "out of range"},
      {replaced("\"min_context\": 100", "\"min_context\": 1e999"), "not valid JSON"},
      {replaced("\"min_context\": 100", "\"min_context\": NaN"), "not valid JSON"},
      {replaced("\"min_context\": 100", "\"min_context\": null"), "found null"},
      {replaced("\"layers\": 3,", ""), "$.shape: 'layers' is missing"},
      {replaced("\"layers\": 3", "\"layers\": 1000000000"), "layers = 1000000000"},
      {replaced("\"layers\": 3", "\"layers\": 0"), "layers = 0"},
      {replaced("\"kv_heads\": 2", "\"kv_heads\": 3"), "no multiple"},
      {replaced("\"context\": 4096", "\"context\": 4096, \"extra\": 1"), "$.shape: unknown key 'extra'"},
      {replaced("{\"architecture\"", "[{\"architecture\"").replace(0, 0, ""), "not valid JSON"},
      {replaced("\"10%,min=16\"", "\"110%\""), "$.selectors[0].budget: budget '110%'"},
      {replaced("\"10%,min=16\"", "\"0\""), "$.selectors[0].budget"},
      {replaced("\"10%,min=16\"", "\"nan\""), "$.selectors[0].budget"},
      {replaced("\"10%,min=16\"", "512"), "$.selectors[0].budget: expected a string"},
      {replaced("\"budget\": \"10%,min=16\",", ""), "$.selectors[0]: 'budget' is missing"},
      {replaced("\"source\": \"probability\"", "\"source\": \"probabilty\""),
       "$.selectors[0].terms[0].source: unknown word 'probabilty'; did you mean 'probability'"},
      {replaced("\"group\": \"mean-probability\"", "\"group\": \"max-score\""), "selector 0, term 0"},
      {replaced("\"terms\": [", "\"terms\": 5, \"x\": ["), "$.selectors[0].terms: expected an array"},
      {replaced("\"terms\": [", "\"terms\": [3, "), "$.selectors[0].terms[0]: expected an object"},
      {replaced("[0, 0]", "[1, 1]"), "$.layers[0].layers: starts at layer 1, expected 0"},
      {replaced("[0, 0]", "[0, 3]"), "ends at layer 3"},
      {replaced("[0, 0]", "[0, -1]"), "ends at layer -1"},
      {replaced("[0, 0]", "[0]"), "expected [first, last]"},
      {replaced("[0, 0]", "0"), "expected [first, last]"},
      {replaced("[2, 2]", "[1, 2]"), "$.layers[2].layers: starts at layer 1, expected 2"},
      {replaced("{\"role\": \"dense\"}", ""), "0 roles; give 1 for all heads, or 2"},
      {replaced("{\"role\": \"dense\"}", "{}"), "$.layers[0].heads[0]: 'role' is missing"},
      {replaced("{\"role\": \"dense\"}", "{\"role\": \"sparse\"}"), "$.layers[0].heads[0].role: unknown word 'sparse'"},
      {replaced("\"attends\": \"set\"", "\"attends\": \"some\""), "neither set nor all"},
      // Words that no method needs.
      {replaced("\"attends\": \"set\"", "\"lifetime\": \"steps\""),
       "$.layers[1].heads[0]: unknown key 'lifetime' (known: role, selector, attends"},
      {replaced("\"layers\": [1, 1],", "\"layers\": [1, 1], \"combine\": \"map\","),
       "$.layers[1].combine: unknown word 'map' (known: none, union-sets)"},
      {replaced("\"layers\": [1, 1],", "\"layers\": [1, 1], \"combine\": \"rank-merge\","),
       "$.layers[1].combine: unknown word 'rank-merge' (known: none, union-sets)"},
      {replaced("\"selector\": 0", "\"selector\": 4"), "layer 1, KV head 0"},
      {replaced("\"head\": 0", "\"head\": 9"), "layer 2, KV head 1"},
      {replaced("\"head\": 0", "\"head\": -1"), "$.layers[2].heads[1].reads.head: is negative"},
      {replaced("\"head\": 0", "\"hed\": 0"), "$.layers[2].heads[1].reads: unknown key 'hed'"},
  };
  for (const auto& c : cases) {
    try {
      from_json(c.text);
      ADD_FAILURE() << "accepted: " << c.text.substr(0, 200);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(c.says)) << c.text.substr(0, 2000);
      EXPECT_THAT(error.what(), testing::Not(HasSubstr("json.exception")));  // no name of a library's
    }
  }
}

TEST(PlanJson, RefusesEveryTruncation) {
  for (std::size_t length = 0; length + 1 < kSample.size(); ++length) {
    EXPECT_THROW(from_json(kSample.substr(0, length)), UserError) << length;
  }
}

// A changed byte gives a plan that validates or a UserError, nothing else.
TEST(PlanJson, SurvivesChangedBytes) {
  std::mt19937_64 random(11);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text(kSample);
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    std::optional<Plan> plan;
    try {
      plan = from_json(text);
    } catch (const UserError&) {
      ++refused;
    }
    if (plan) {
      EXPECT_EQ(from_json(to_json(*plan)), *plan) << text;
    }
  }
  EXPECT_GT(refused, 10000);
}

}  // namespace
}  // namespace glimpse::plan
