#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/plan/plan.h"
#include "random_plan.h"

namespace glimpse::plan {
namespace {

using testing::HasSubstr;

// One layer of each kind, 2 KV heads of 2 query heads.
Plan sample(const Budget& budget) {
  Plan plan = dense_plan({"qwen3", "Sample 1B", 5, 4, 2, 64, 40960});
  Selector select;
  select.budget = budget;
  select.terms.push_back({});
  Selector stream;
  stream.budget = {BudgetRule::tokens, 64};
  stream.sink = 4;
  stream.local = 60;
  plan.selectors = {select, stream};
  plan.retentions.push_back({RetentionRule::window, 4, {BudgetRule::tokens, 64}});
  for (int head = 0; head < 2; ++head) {
    plan.role(1, head) = {.kind = RoleKind::select, .selector = 0};
    plan.role(2, head) = {.kind = RoleKind::reuse, .reads = {1, 1 - head}};
    plan.role(3, head) = {.kind = RoleKind::select, .selector = 0, .attends_set = true};
  }
  plan.role(4, 0) = {.kind = RoleKind::reuse, .reads = {3, 0}};
  plan.role(4, 1) = {.kind = RoleKind::stream, .selector = 1, .retention = 0};
  return plan;
}

TEST(Explain, ShowsEveryRole) {
  const std::string text = explain(sample({BudgetRule::tokens, 256}));
  for (const char* part : {
           "budget   256 tokens and 64 tokens",
           "qwen3 (Sample 1B): 5 layers, 4 query heads, 2 KV heads (group 2), head dim 64, context 40960",
           "    0  DD     everything",
           "    1  SS     everything; publishes by selector 0",
           "    2  RR     the sets of layer 1, heads 1,0",
           "    3  ss     own set; publishes by selector 0",
           "    4  RW     R the sets of layer 3, same head | W first 4 and last 60 tokens",
           "D dense, S selects and reads everything",
           "selector 0: budget 256, a set per kv-head, by token; probability, mean-probability over the group",
           "retention 0: window: keeps 64 tokens, the first 4 among them; the rest is forgotten",
           "layers:  FFSFS  (F computes, S shares)",
       }) {
    EXPECT_THAT(text, HasSubstr(part)) << text;
  }
}

// Rows by hand at N = 1024 and 8192: dense 2N a head; the set 2k; a select of its own set reads N keys besides.
TEST(Explain, ShareOfTheCacheIsCounted) {
  const std::string text = explain(sample({BudgetRule::tokens, 256}));
  for (const int tokens : {1024, 8192}) {
    const double n = tokens;
    const double rows = 2 * (2 * n) * 2 + 2 * (2 * 256.0) + 2 * (n + 2 * 256.0) + 2 * 256.0 + 2 * 64.0;
    EXPECT_THAT(text, HasSubstr(fmt::format("{}K {:.1f} %", tokens / 1024, 100 * rows / (10 * 2 * n)))) << text;
  }
  EXPECT_THAT(explain(sample({BudgetRule::mass, 0.9})), HasSubstr("1K <= "));
  EXPECT_THAT(explain(dense_plan({"llama", "", 2, 2, 2, 64, 100})), HasSubstr("128K 100.0 %"));
  Plan later = sample({BudgetRule::tokens, 256});
  later.min_context = 8193;
  EXPECT_THAT(explain(later), HasSubstr("1K 100.0 %, 8K 100.0 %, 32K "));
  EXPECT_THAT(explain(later), HasSubstr("dense    below 8193 tokens"));
}

TEST(Explain, NamesOneSetForALayer) {
  Plan plan = dense_plan({"llama", "", 2, 4, 2, 64, 100});
  Selector selector;
  selector.per = SetPer::layer;
  selector.terms.push_back({});
  selector.terms[0].heads = HeadPooling::mean;
  plan.selectors.push_back(selector);
  for (int head = 0; head < 2; ++head) {
    plan.role(0, head) = {.kind = RoleKind::select, .selector = 0};
    plan.role(1, head) = {.kind = RoleKind::reuse, .reads = {0, 0}};
  }
  EXPECT_THAT(explain(plan), HasSubstr("the set of layer 0"));
  EXPECT_THAT(explain(plan), HasSubstr("mean over the heads"));
}

TEST(Explain, HasALineForEachLayerOfAnyPlan) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Plan plan = random_plan(seed);
    const std::string text = explain(plan);
    for (int layer = 0; layer < plan.shape.layers; ++layer) {
      EXPECT_THAT(text, HasSubstr(fmt::format("\n{:>5}  ", layer))) << "seed " << seed;
    }
    const std::size_t at = text.find("layers:  ");
    ASSERT_NE(at, std::string::npos);
    EXPECT_EQ(text.find_first_not_of("FS", at + 9) - (at + 9), static_cast<std::size_t>(plan.shape.layers));
  }
}

TEST(Explain, RefusesWhatCannotRun) {
  Plan plan = dense_plan({"llama", "", 2, 2, 1, 64, 100});
  plan.roles.clear();
  EXPECT_THROW(explain(plan), UserError);
}

TEST(Explain, SharesOfStampsAreOfTheGeneratedTokens) {
  Plan plan = dense_plan({"llama", "", 2, 4, 2, 64, 8192});
  plan.retentions.push_back({RetentionRule::stamps, 0, {BudgetRule::tokens, 512}});
  for (Role& role : plan.roles) role.retention = 0;
  plan.feedback = Feedback::probabilities;
  EXPECT_THAT(explain(plan), HasSubstr("cache rows read per decode step, of dense, of the generated tokens (the prompt "
                                       "is read whole): 1K 50.0 %, 8K 6.2 %"));
  EXPECT_THAT(explain(sample({BudgetRule::tokens, 256})), HasSubstr("per decode step, of dense: 1K "));
}

TEST(Explain, LetsNoNameDriveTheTerminal) {
  Plan plan = sample({BudgetRule::tokens, 256});
  plan.policy = "quiet\x1b]0;title\x07\nlayer";
  plan.shape.model_name = "a\x1b[2Jb\xc2\x9b";
  plan.shape.architecture = "x\ry";
  const std::string text = explain(plan);
  EXPECT_THAT(text, HasSubstr("policy   quiet?]0;title??layer\n"));
  EXPECT_THAT(text, HasSubstr("x?y (a?[2Jb?): 5 layers"));
  for (const char c : text) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n');
}

}  // namespace
}  // namespace glimpse::plan
