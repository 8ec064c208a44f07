// Which plans of the registry's methods run on a GPU: what docs/gpu.md says of them. No GPU is asked.
#include <gtest/gtest.h>

#include "glimpse/attention/cuda/program_facts.h"
#include "glimpse/attention/cuda/supported.h"
#include "glimpse/base/error.h"
#include "glimpse/policies/policy.h"

namespace glimpse::attention::cuda {
namespace {

const plan::ModelShape kShape{"llama", "", 32, 32, 8, 128, 131072};

plan::Plan plan_of(std::string_view name, std::map<std::string, std::string> extra = {}) {
  policies::PolicyOptions options;
  options.extra = std::move(extra);
  return policies::make_plan(name, kShape, options);
}

void expect_refused(const plan::Plan& plan, std::string_view what) {
  try {
    require_supported(plan);
    ADD_FAILURE() << plan.policy << " runs";
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find(plan.policy), std::string::npos) << text;
    EXPECT_NE(text.find(what), std::string::npos) << text;
    EXPECT_NE(text.find("leave out --device"), std::string::npos) << text;
  }
}

TEST(CudaSupported, MethodsAsTheyCome) {
  for (const char* name :
       {"full", "streaming", "tidal", "lychee-decode", "omnikv", "lessismore", "duo", "razor", "kascade", "oracle",
        "h2o", "tova", "raas", "evosparse", "quest", "lychee-cluster", "clusterkv"}) {
    SCOPED_TRACE(name);
    EXPECT_NO_THROW(require_supported(plan_of(name)));
  }
}

TEST(CudaSupported, OptionsThatRun) {
  EXPECT_NO_THROW(require_supported(plan_of("streaming", {{"prefill", "sparse"}})));
  EXPECT_NO_THROW(require_supported(plan_of("arkvale")));
  EXPECT_NO_THROW(require_supported(plan_of("arkvale", {{"resident", "all"}})));
  EXPECT_NO_THROW(require_supported(plan_of("arkvale", {{"resident", "all"}, {"digest", "sphere"}})));
  EXPECT_NO_THROW(require_supported(plan_of("quest", {{"score", "meanstd"}})));
  EXPECT_NO_THROW(require_supported(plan_of("shadowkv")));
  EXPECT_NO_THROW(require_supported(plan_of("shadowkv", {{"resident", "all"}})));
  EXPECT_NO_THROW(require_supported(plan_of("shadowkv", {{"resident", "all"}, {"rank", "0"}})));
  EXPECT_NO_THROW(require_supported(plan_of("seer", {{"gates", "gates.gguf"}})));
  for (const char* score : {"minmax", "meanstd"}) {
    EXPECT_NO_THROW(require_supported(plan_of("lychee-cluster", {{"score", score}})));
  }
  policies::PolicyOptions window;
  window.local = 64;
  EXPECT_NO_THROW(require_supported(policies::make_plan("clusterkv", kShape, window)));
  for (const char* set : {"kv-head", "layer"}) {
    for (const char* pooling : {"probability", "query"}) {
      EXPECT_NO_THROW(require_supported(plan_of("kascade", {{"set", set}, {"pooling", pooling}})));
    }
  }
  for (const char* selector : {"exact", "quest", "lychee-cluster", "clusterkv"}) {
    EXPECT_NO_THROW(require_supported(plan_of("tidal", {{"selector", selector}})));
    EXPECT_NO_THROW(require_supported(plan_of("lessismore", {{"selector", selector}})));
  }
}

TEST(CudaSupported, WhatDoesNotRunIsRefusedByName) {
  policies::PolicyOptions options;
  options.budget = plan::parse_budget("400000");
  options.extra = {{"retrieval-blocks", "20000"}};
  expect_refused(policies::make_plan("evosparse", kShape, options), "retrieval-blocks");
}

/// Which passes are launched before the one before them has ended.
TEST(CudaSupported, WhatLeavesNothingOnTheHost) {
  const auto leaves_nothing = [](const plan::Plan& plan, PassKind kind = PassKind::decode, std::int64_t at = 5000) {
    const Program program(plan);
    return ProgramFacts(program).leaves_nothing(program, kind, at);
  };
  for (const char* name : {"full", "tidal", "evosparse", "quest", "lessismore", "lychee-cluster", "clusterkv"}) {
    EXPECT_TRUE(leaves_nothing(plan_of(name))) << name;
    EXPECT_EQ(leaves_nothing(plan_of(name), PassKind::draft), std::string_view(name) != "evosparse") << name;
  }
  for (const char* name : {"h2o", "arkvale", "shadowkv", "streaming"})
    EXPECT_FALSE(leaves_nothing(plan_of(name))) << name;
  // A chunk that leaves a small buffer may hold the token of the pass that runs.
  policies::PolicyOptions options;
  for (const auto& [budget, wanted] : std::map<std::string, bool>{{"36", true}, {"34", false}, {"1%", true}}) {
    options.budget = plan::parse_budget(budget);
    EXPECT_EQ(leaves_nothing(policies::make_plan("lychee-cluster", kShape, options)), wanted) << budget;
  }
  options.budget = plan::parse_budget("1%");
  const plan::Plan share = policies::make_plan("lychee-cluster", kShape, options);
  EXPECT_FALSE(leaves_nothing(share, PassKind::decode, 3500));
  EXPECT_TRUE(leaves_nothing(share, PassKind::decode, 3600));
}

}  // namespace
}  // namespace glimpse::attention::cuda
