// glimpse plan and glimpse inspect.
#include "glimpse/plan/plan.h"

#include <gtest/gtest.h>

#include "glimpse/plan/profile.h"
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
  EXPECT_NE(outcome.out.find("with anchor-selector=quest: anchor-selector.score, anchor-selector.deviation-weight\n"),
            std::string::npos)
      << outcome.out;
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
  const auto marked = scratch("marked.json");
  write_file(marked, "\xef\xbb\xbf" + json.out);  // as some editors save it
  const Outcome same = run_program({"inspect", marked.string()});
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_NE(same.out.find(plan::explain(plan::from_json(json.out))), std::string::npos) << same.out;
}

// A profile of the test model that maps every head to the anchor's other one.
plan::Profile profile_of_model() {
  plan::Profile profile;
  profile.model = {"llama", "test llama", 4, 6, 2, 32, 0};
  profile.kascade = plan::KascadeProfile{{0, 2}, {0, 1, 1, 0, 0, 1, 1, 0}};
  return profile;
}

TEST(PlanCommand, TakesAProfile) {
  const auto path = scratch("profile.json");
  write_file(path, plan::to_json(profile_of_model()));
  const plan::Profile profile = profile_of_model();
  policies::PolicyOptions options;
  options.profile = &profile;
  const plan::Plan expected = policies::make_plan("kascade", {"llama", "test llama", 4, 6, 2, 32, 4096}, options);
  EXPECT_EQ(expected.role(1, 0).reads, (plan::SlotId{0, 1}));
  const std::vector<std::string> words{"plan", "-m", model(), "--json", "--attn"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = words;
    all.insert(all.end(), more.begin(), more.end());
    return run_program(all);
  };
  const Outcome mapped = with({"kascade", "--attn-profile", path.string()});
  EXPECT_EQ(mapped.code, 0) << mapped.err;
  EXPECT_EQ(plan::from_json(mapped.out), expected);
  EXPECT_EQ(mapped.err, "");
  auto piped_words = words;
  piped_words.insert(piped_words.end(), {"kascade", "--attn-profile", "-"});
  const Outcome piped = run_program(piped_words, {.input = plan::to_json(profile)});
  EXPECT_EQ(piped.code, 0) << "a pipe can be read once: " << piped.err;
  EXPECT_EQ(piped.out, mapped.out);
  const Outcome without = with({"kascade"});
  EXPECT_EQ(without.code, 0);
  EXPECT_NE(without.err.find("warning: policy 'kascade': no profile"), std::string::npos) << without.err;

  for (const auto& [more, says] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"full", "--attn-profile", path.string()}, "policy 'full' has no use for --attn-profile"},
           {{"duo", "--attn-profile", path.string()}, "it needs retrieval or roles"},
           {{"kascade", "--attn-profile", "/nonexistent"}, "--attn-profile '/nonexistent'"},
           {{"kascade", "--attn-profile", model()}, "profile JSON"}}) {
    const Outcome refused = with(more);
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find(says), std::string::npos) << refused.err;
  }
  plan::Profile other = profile_of_model();
  other.model.model_name = "another";
  write_file(path, plan::to_json(other));
  const Outcome wrong = with({"kascade", "--attn-profile", path.string()});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("made for llama 'another'"), std::string::npos) << wrong.err;
  const Outcome beside = run_program({"plan", "-m", model(), "--attn-plan", "x", "--attn-profile", path.string()});
  EXPECT_EQ(beside.code, 2);
  EXPECT_NE(beside.err.find("--attn-profile and --attn-plan"), std::string::npos) << beside.err;
}

TEST(BenchDecode, RefusesAProfileThatNoArmUses) {
  const auto path = scratch("profile.json");
  write_file(path, plan::to_json(profile_of_model()));
  const Outcome outcome =
      run_program({"bench", "decode", "-m", model(), "--arms", "full,tidal", "--attn-profile", path.string()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("no arm has a use"), std::string::npos) << outcome.err;
}

TEST(Inspect, AProfile) {
  const auto path = scratch("profile.json");
  write_file(path, plan::to_json(profile_of_model()));
  const Outcome outcome = run_program({"inspect", path.string()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("llama 'test llama', 4 layers"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(plan::explain(profile_of_model())), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("fingerprint     none: any file"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find('|'), std::string::npos) << "nothing to draw: " << outcome.out;
}

TEST(Inspect, TheHeatOfAProfile) {
  plan::Profile profile = profile_of_model();
  profile.fingerprint = 0xabcd;
  profile.lessismore = plan::LessIsMoreProfile{3};
  profile.retrieval = plan::RetrievalProfile{std::vector<double>(24, 0)};
  const std::vector<double> scores{0.04, 0.06, 0.14, 0.16, 0.94, 0.96, 1, 0.5, 0.2, 0.3, 0.4, 0.6};
  std::copy(scores.begin(), scores.end(), profile.retrieval->scores.begin() + 6);
  profile.roles = plan::RolesProfile{{0, 0.7, 0, 0, 0, 0, 0.8, 0}};
  const auto path = scratch("profile.json");
  write_file(path, plan::to_json(profile));
  const Outcome outcome = run_program({"inspect", path.string()});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"fingerprint     000000000000abcd\n", "lessismore layer 3 selects again\n",
                           "retrieval scores, a column for each query head\nlayer\n    1  | ..:#@|\n    2  |@+:-=*|\n"
                           "2 layers are without any from 0.05 on\n' .:-=+*oO#@' stands for 0, 0.1, ... 1\n",
                           "a column for each KV head\nlayer\n    0  | o|\n    3  |O |\n2 layers are"}) {
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\nin\n" << outcome.out;
  }
}

}  // namespace
}  // namespace glimpse::cli
