// Flags that have no effect beside the others are refused in one line that names the flag and the cure; environment
// forms that have none are left out.
#include <gtest/gtest.h>

#include "glimpse/cli/options.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

struct Idle {
  std::vector<std::string> words;
  std::string flag, part;
};

std::vector<std::string> run_on(const std::vector<std::string>& more) {
  std::vector<std::string> words = run_words({"-p", "the river", "-n", "2"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<Idle> idle_runs() {
  const std::string zero = "at temperature 0", dense = "attention that reads everything", penalty = "without a penalty";
  return {{{"--top-k", "3"}, "--top-k", zero},
          {{"--top-p", "0.5"}, "--top-p", zero},
          {{"--min-p", "0.5"}, "--min-p", zero},
          {{"-s", "7"}, "--seed", zero},
          {{"--temp", "0", "--top-k", "3"}, "--top-k", zero},
          {{"--temp", "1", "--top-k", "1", "-s", "7"}, "--seed", "--top-k 1"},
          {{"--temp", "1", "--top-k", "1", "--min-p", "0.1"}, "--min-p", "--top-k 1"},
          {{"--repeat-last-n", "9"}, "--repeat-last-n", penalty},
          {{"--repeat-penalty", "1.1", "--repeat-last-n", "0"}, "--repeat-penalty", "--repeat-last-n 0"},
          {{"--presence-penalty", "1", "--repeat-last-n", "0"}, "--presence-penalty", "--repeat-last-n 0"},
          {{"--ignore-eos", "--min-tokens", "2"}, "--min-tokens", "--ignore-eos"},
          {{"--lossless"}, "--lossless", dense},
          {{"--lossless", "4", "--attn", "full"}, "--lossless", dense},
          {{"--attn-audit", "4"}, "--attn-audit", dense},
          {{"--correct", "4"}, "--correct", dense},
          {{"--attn-min-ctx", "100"}, "--attn-min-ctx", "--attn full"},
          {{"--kv-tier-dir", "/tmp"}, "--kv-tier-dir", "without a host tier"},
          {{"--attn", "quest", "--kv-tier-dir", "/tmp"}, "--kv-tier-dir", "without a host tier"},
          {{"--attn", "auto", "--attn-budget", "9"}, "--attn-budget", "--attn auto"},
          {{"--attn", "auto", "--attn-opt", "set=layer"}, "--attn-opt", "--attn auto"},
          {{"--attn", "tidal", "--attn-quality", "kl=1"}, "--attn-quality", "without the method 'auto'"},
          {{"--attn", "auto", "--lossless", "--attn-quality", "kl=1"}, "--attn-quality", "--lossless"},
          {{"--attn", "tidal", "--calibrate", "--attn-profile", "none"}, "--calibrate", "--attn-profile"},
          {{"-q", "-v"}, "--verbose", "--quiet"},
          {{"--raw", "--system", "x"}, "--system", "--raw"},
          {{"-i", "--trace", "t"}, "--trace", "-i"}};
}

TEST(IdleFlags, OfRunAreRefused) {
  for (const Idle& row : idle_runs()) {
    const Outcome outcome = run_program(run_on(row.words));
    EXPECT_EQ(outcome.code, 2) << row.flag << outcome.err;
    EXPECT_EQ(outcome.out, "") << row.flag;
    EXPECT_EQ(outcome.err.rfind("error: " + row.flag + " ", 0), 0u) << outcome.err;
    EXPECT_NE(outcome.err.find(row.part), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("leave"), std::string::npos) << "the cure in: " << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST(IdleFlags, WithAnEffectAreTaken) {
  for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
           {"--temp", "1", "--top-k", "3", "--top-p", "0.5", "--min-p", "0.1", "-s", "7"},
           {"--repeat-penalty", "1.1", "--repeat-last-n", "9"},
           {"--repeat-penalty", "1.1", "--repeat-last-n", "-1", "--logit-bias", "5-inf", "-l", "6+2.5"},
           {"--ignore-eos", "--min-tokens", "2", "--stop", "x"},
           {"--attn", "tidal", "--attn-budget", "8", "--lossless"},
           {"--attn", "tidal", "--attn-budget", "8", "--attn-audit", "1"},
           {"--attn", "tidal", "--attn-budget", "8", "--correct", "1", "--attn-min-ctx", "9"},
           {"--attn", "arkvale", "--kv-tier-dir", scratch("x").parent_path().string()}}) {
    const Outcome outcome = run_program(run_on(more));
    EXPECT_EQ(outcome.code, 0) << more[0] << outcome.err;
  }
}

TEST(IdleFlags, OfTheOtherCommands) {
  const auto text = scratch("text.txt");
  write_file(text, prose(30));
  const std::vector<std::vector<std::string>> refused{
      {"plan", "-m", model(), "--attn-min-ctx", "8"},
      {"eval", "sets", "-m", model(), "-f", text.string(), "--steps", "4", "--kv-tier-dir", "/tmp"},
      {"eval", "sets", "-m", model(), "-f", text.string(), "-q", "-v"},
      {"eval", "perplexity", "-m", model(), "-f", text.string(), "-c", "64", "--attn-min-ctx", "8"},
      {"bench", "decode", "-m", model(), "--arms", "full,tidal:64", "--kv-tier-dir", "/tmp"}};
  for (const auto& words : refused) {
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.code, 2) << words[0] << " " << words[1];
    EXPECT_NE(outcome.err.find("has no effect"), std::string::npos) << outcome.err;
  }
  EXPECT_NE(run_program({"bench", "prefill", "-m", model(), "--kv-tier-dir", "/tmp"}).err.find("unknown option"),
            std::string::npos);
}

TEST(IdleFlags, TheEnvironmentsAreLeftOut) {
  const auto plain = run_for_json(run_on({}));
  const auto raw = run_for_json(run_on({"--raw"}));
  const std::vector<std::vector<std::string>> idle{
      {"GLIMPSE_ARG_TOP_K=3", "GLIMPSE_ARG_TOP_P=0.5", "GLIMPSE_ARG_MIN_P=0.2", "GLIMPSE_ARG_SEED=7"},
      {"GLIMPSE_ARG_REPEAT_LAST_N=9"},
      {"GLIMPSE_ARG_LOSSLESS=4"},
      {"GLIMPSE_ARG_ATTN_AUDIT=4", "GLIMPSE_ARG_CORRECT=4"},
      {"GLIMPSE_ARG_KV_TIER_DIR=/tmp", "GLIMPSE_ARG_ATTN_MIN_CTX=8"},
      {"GLIMPSE_ARG_ATTN_BUDGET=64", "GLIMPSE_ARG_ATTN_BLOCK=4", "GLIMPSE_ARG_ATTN_SINK=1", "GLIMPSE_ARG_ATTN_LOCAL=2"},
      {"GLIMPSE_ARG_ATTN_OPT=set=layer"}};
  for (const auto& environment : idle) {
    const auto json = run_for_json(run_on({}), {.environment = environment});
    EXPECT_EQ(json["tokens"], plain["tokens"]) << environment[0];
    EXPECT_TRUE(json["lossless"].is_null());
    EXPECT_EQ(json["attention"]["policy"], "full");
  }
  EXPECT_EQ(run_for_json(run_on({"--raw"}), {.environment = {"GLIMPSE_ARG_SYSTEM=x"}})["prompt_tokens"],
            raw["prompt_tokens"]);
  // A method that is typed is not the environment's, and so are its options.
  const Setting other{.environment = {"GLIMPSE_ARG_ATTN=tidal", "GLIMPSE_ARG_ATTN_OPT=set=layer"}};
  EXPECT_EQ(run_for_json(run_on({"--attn", "quest"}), other)["attention"]["policy"], "quest");
  EXPECT_EQ(run_for_json(run_on({}), other)["attention"]["set_per"], "layer");
  const Setting plan{.environment = {"GLIMPSE_ARG_ATTN_PLAN=/nonexistent"}};
  EXPECT_EQ(run_for_json(run_on({"--attn", "quest"}), plan)["attention"]["policy"], "quest");
  // A key that the environment's own method has not is a mistake.
  const Outcome typo =
      run_program(run_on({}), {.environment = {"GLIMPSE_ARG_ATTN=tidal", "GLIMPSE_ARG_ATTN_OPT=sets=layer"}});
  EXPECT_EQ(typo.code, 2);
  EXPECT_NE(typo.err.find("did you mean 'set'?"), std::string::npos) << typo.err;
  const auto text = scratch("text.txt");
  write_file(text, prose(30));
  const Outcome dense = run_program({"eval", "perplexity", "-m", model(), "-f", text.string(), "-c", "64"},
                                    {.environment = {"GLIMPSE_ARG_ATTN=tidal"}});
  EXPECT_EQ(dense.code, 0) << dense.err;
}

}  // namespace
}  // namespace glimpse::cli
