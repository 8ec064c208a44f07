// glimpse plan and glimpse inspect.
#include "glimpse/plan/plan.h"

#include <gtest/gtest.h>

#include "glimpse/policies/policy.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

TEST(PlanCommand, TableAndJsonAreThePolicysPlan) {
  const plan::ModelShape shape{"llama", "test llama", 4, 6, 2, 32, 4096};
  policies::PolicyOptions options;
  options.budget = plan::parse_budget("10%");
  options.local = 4;
  options.extra["set"] = "layer";
  const plan::Plan expected = policies::make_plan("tidal", shape, options);
  std::vector<std::string> words{"plan", "-m",           model(), "--attn",     "tidal",    "--attn-budget",
                                 "10%",  "--attn-local", "4",     "--attn-opt", "set=layer"};
  const Outcome table = run_program(words);
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find(plan::explain(expected)), std::string::npos) << table.out;
  words.push_back("--json");
  const Outcome json = run_program(words);
  EXPECT_EQ(plan::from_json(json.out), expected);
}

TEST(PlanCommand, ListsEveryPolicyAndItsOptions) {
  const Outcome outcome = run_program({"plan", "--list"});
  EXPECT_EQ(outcome.code, 0);
  for (const policies::Policy& policy : policies::registry()) {
    EXPECT_NE(outcome.out.find(policy.name), std::string::npos);
    EXPECT_NE(outcome.out.find(policy.help), std::string::npos);
    for (const policies::OptionHelp& option : policy.options) {
      EXPECT_NE(outcome.out.find(option.key), std::string::npos);
      EXPECT_NE(outcome.out.find(option.help), std::string::npos);
    }
  }
}

TEST(Inspect, AModel) {
  const Outcome outcome = run_program({"inspect", model("qwen2-yarn")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"qwen2", "4 layers", "6 query and 2 KV heads of 32", "4096 tokens", "YaRN by 2 from 2048",
                           "untied", "512 tokens, gpt2 (qwen2)", "chat template   yes", "f32 "}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
  }
  // K and V of 4 layers and 2 KV heads of 32 values, and for q8_0 a float scale for each row.
  for (const char* part : {"2.05 KB a token", "1.02 KB a token", "576 B a token"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
  }
}

TEST(Inspect, TypesOfAQuantisedModelAndASplitOne) {
  // quantize_gguf names its types in ggml's words, which the program's must be.
  for (const char* type : {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K",
                           "q6_K", "iq4_nl", "iq4_xs", "iq3_s", "tq1_0", "tq2_0"}) {
    const Outcome quantised = run_program({"inspect", model(std::string("llama256-") + type)});
    EXPECT_EQ(quantised.code, 0) << quantised.err;
    const std::size_t tensors = quantised.out.find("tensors  "), cache = quantised.out.find("KV cache");
    ASSERT_LT(tensors, cache) << type;
    const std::string listed = quantised.out.substr(tensors, cache - tensors);
    EXPECT_NE(listed.find(std::string(" ") + type + " "), std::string::npos) << type << " in\n" << listed;
  }
  const Outcome split = run_program({"inspect", model("split-00001-of-00003")});
  const Outcome whole = run_program({"inspect", model("llama")});
  const auto tensors = [](const std::string& text) {
    const std::size_t at = text.find("tensors  ");
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_EQ(tensors(split.out), tensors(whole.out));
}

TEST(Inspect, APlan) {
  const auto path = scratch("plan.json");
  const Outcome json = run_program({"plan", "-m", model(), "--attn", "tidal", "--json"});
  write_file(path, json.out);
  const Outcome outcome = run_program({"inspect", path.string()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(plan::explain(plan::from_json(json.out))), std::string::npos) << outcome.out;
}

}  // namespace
}  // namespace glimpse::cli
