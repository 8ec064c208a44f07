// The option table itself, help, version, and the environment forms.
#include "glimpse/cli/options.h"

#include <gtest/gtest.h>

#include <set>

#include "glimpse/engine/engine.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

TEST(OptionTable, DefaultsAreTheEngines) {
  const char* words[] = {"glimpse", "run"};
  const Arguments arguments = parse_arguments(2, words).arguments;
  EXPECT_EQ(arguments.kv_type, name(engine::kDefaultKvType));
  const engine::EngineOptions options;
  EXPECT_EQ(arguments.prefill_chunk, options.prefill_chunk);
  EXPECT_EQ(arguments.context, options.context);
  EXPECT_EQ(arguments.threads, options.threads);
  const text::SamplingOptions sampling;
  EXPECT_FLOAT_EQ(static_cast<float>(arguments.temperature), sampling.temperature);
  EXPECT_EQ(arguments.top_k, sampling.top_k);
  EXPECT_FLOAT_EQ(static_cast<float>(arguments.top_p), sampling.top_p);
  EXPECT_FLOAT_EQ(static_cast<float>(arguments.min_p), sampling.min_p);
  EXPECT_FLOAT_EQ(static_cast<float>(arguments.repeat_penalty), sampling.repeat_penalty);
  EXPECT_EQ(arguments.repeat_last_n, sampling.repeat_last_n);
  EXPECT_EQ(arguments.seed, sampling.seed);
}

TEST(OptionTable, EveryCommandHasHelpThatNamesItsOptions) {
  for (const Command& command : commands()) {
    std::vector<std::string> words;
    const std::string path(command.path);
    words.push_back(path.substr(0, path.find(' ')));
    if (path.find(' ') != std::string::npos) words.push_back(path.substr(path.find(' ') + 1));
    words.push_back("--help");
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.code, 0) << path;
    EXPECT_EQ(outcome.err, "") << path;
    std::set<std::string_view> flags;
    for (const Option& option : options()) {
      if ((option.commands & command.bit) == 0) continue;
      EXPECT_TRUE(flags.insert(option.flags).second) << path << ": twice " << option.flags;
      EXPECT_NE(outcome.out.find(option.flags), std::string::npos) << path << ": no " << option.flags;
    }
  }
}

TEST(OptionTable, HelpAndVersion) {
  const Outcome help = run_program({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* command : {"run", "plan", "inspect", "eval", "bench"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
  }
  EXPECT_EQ(help.out.find("serve"), std::string::npos);
  const Outcome version = run_program({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.rfind("glimpse ", 0), 0u);
}

TEST(OptionTable, EnvironmentNames) {
  EXPECT_EQ(environment_name("-n,--predict,--n-predict"), "GLIMPSE_ARG_PREDICT");
  EXPECT_EQ(environment_name("--attn-min-ctx"), "GLIMPSE_ARG_ATTN_MIN_CTX");
}

TEST(Environment, FormsWorkAndFlagsWin) {
  const Setting setting{.environment = {"GLIMPSE_ARG_MODEL=" + model(), "GLIMPSE_ARG_PROMPT=the river was high",
                                        "GLIMPSE_ARG_PREDICT=3", "GLIMPSE_ARG_RAW=1", "GLIMPSE_ARG_ATTN=tidal",
                                        "GLIMPSE_ARG_ATTN_BUDGET=2", "GLIMPSE_ARG_ATTN_OPT=set=layer,reselect=none",
                                        "GLIMPSE_ARG_JSON=true", "GLIMPSE_ARG_TEMP="}};
  const Outcome outcome = run_program({"run"}, setting);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["generated_tokens"], 3);
  EXPECT_EQ(json["attention"]["policy"], "tidal");
  EXPECT_EQ(json["attention"]["budget"], "2");
  EXPECT_LT(json["attention"]["kept_ratio"], 1.0);
  const Outcome flag = run_program({"run", "-n", "5", "--attn", "full", "--attn-plan=/nonexistent"}, setting);
  EXPECT_EQ(flag.code, 2) << "the environment's --attn-budget stands beside --attn-plan";
  const auto won = nlohmann::json::parse(run_program({"run", "-n", "5", "--attn-budget", "3"}, setting).out);
  EXPECT_EQ(won["generated_tokens"], 5);
  EXPECT_EQ(won["attention"]["budget"], "3");
}

TEST(Environment, TheLastOfAFlagGivenTwiceWins) {
  const auto json = run_for_json(run_words({"-p", "the river", "-n", "9", "-n", "2"}));
  EXPECT_EQ(json["generated_tokens"], 2);
}

}  // namespace
}  // namespace glimpse::cli
