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
  for (const char* command : {"run", "plan", "inspect", "serve", "eval", "bench"}) {
    EXPECT_NE(help.out.find(command), std::string::npos) << command;
  }
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
  const auto won = nlohmann::json::parse(run_program({"run", "-n", "5", "--attn-budget", "3"}, setting).out);
  EXPECT_EQ(won["generated_tokens"], 5);
  EXPECT_EQ(won["attention"]["budget"], "3");
}

TEST(Environment, TheLastOfAFlagGivenTwiceWins) {
  const auto json = run_for_json(run_words({"-p", "the river", "-n", "9", "-n", "2"}));
  EXPECT_EQ(json["generated_tokens"], 2);
}

TEST(Repeated, FilesAndPromptsAreJoinedByEmptyLinesFilesFirst) {
  const auto one = scratch("one.txt"), two = scratch("two.txt");
  write_file(one, "the river was high\n");
  write_file(two, "nobody walked along\n\n");
  const std::string joined = "the river was high\n\nnobody walked along\n\n\nthe road\n\nuntil morning";
  const auto plain = run_for_json(run_words({"-p", joined, "-n", "4"}));
  const auto several = run_for_json(
      run_words({"-p", "the road", "-f", one.string(), "-p", "until morning", "-f", two.string(), "-n", "4"}));
  EXPECT_EQ(several["prompt_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(several["tokens"], plain["tokens"]);
  const auto piped =
      run_for_json(run_words({"-f", "-", "-f", two.string(), "-p", "the road\n\nuntil morning", "-n", "4"}),
                   {.input = "the river was high\n"});
  EXPECT_EQ(piped["tokens"], plain["tokens"]);
  const Outcome twice = run_program(run_words({"-f", "-", "-f", "-"}), {.input = "x"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_NE(twice.err.find("standard input can be read once"), std::string::npos) << twice.err;
}

TEST(Repeated, OneTextIsOneText) {
  const auto text = scratch("text.txt");
  write_file(text, prose(3));
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"eval", "perplexity"},
                                             {"eval", "sets"},
                                             {"eval", "fidelity"},
                                             {"eval", "logits", "-o", scratch("x.npy").string()},
                                             {"bench", "decode", "--depth", "16"},
                                             {"bench", "prefill", "--length", "16"},
                                             {"bench", "serve", "--prompt-tokens", "16"}}) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"-m", model(), "-f", text.string(), "-f", text.string()});
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("-f is given 2 times"), std::string::npos) << outcome.err;
  }
}

TEST(Repeated, HelpSaysTheRule) {
  const Outcome help = run_program({"run", "--help"});
  EXPECT_NE(help.out.find("A flag that is given twice counts as it is given last"), std::string::npos);
  EXPECT_NE(help.out.find("joined by empty lines"), std::string::npos);
}

TEST(OutputFlag, IsAFileInEveryCommandThatHasItOrTheScoreboardsFolder) {
  for (const Option& option : options()) {
    if (!option.flags.starts_with("-o")) continue;
    EXPECT_EQ(option.value, option.commands == kScoreboard ? "DIR" : "FILE") << option.flags;
  }
  const auto table = scratch("table.md");
  const std::vector<std::string> bench{"bench", "attention", "--depth", "64", "--rows", "16", "-r", "1", "-t", "1"};
  auto words = bench;
  words.insert(words.end(), {"-o", table.string(), "--format", "json"});
  const Outcome outcome = run_program(words);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(nlohmann::json::parse(read_file(table))["benchmark"], "attention");
  words = bench;
  words.insert(words.end(), {"-o", "json"});
  const Outcome habit = run_program(words);
  EXPECT_EQ(habit.code, 2);
  EXPECT_NE(habit.err.find("give --format json"), std::string::npos) << habit.err;
  words.back() = "/dev/full";
  EXPECT_EQ(run_program(words).code, 2);
  words.back() = "/nonexistent/table";
  EXPECT_EQ(run_program(words).code, 2);
}

}  // namespace
}  // namespace glimpse::cli
