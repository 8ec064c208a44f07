// --attn auto in every command: what it takes and says, and what it does without a profile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "glimpse/cli/machine.h"
#include "glimpse/plan/profile.h"
#include "glimpse/policies/policy.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

const plan::ModelShape kShape{"llama", "test llama", 4, 6, 2, 32, 4096};

/// In four layers TidalDecode selects once. tidal at 64 tokens keeps the answers and is the faster from 400 tokens on;
/// lessismore at 32 is faster and loses some.
plan::Profile timed_profile() {
  plan::Profile profile;
  profile.model = kShape;
  profile.model.context = 0;
  profile.tidal = plan::TidalProfile{3};
  for (const char* task : {"single", "prose"}) {
    profile.kept.push_back({"tidal", "64", task, 1, 1, 0.02, 0.9, 0.875, "reselect=none"});
    profile.kept.push_back({"lessismore", "32", task, 0.5, 1, 0.3, 0.8, 0.5});
  }
  profile.speed = plan::SpeedProfile{profile_cpu_name(), 1, "bf16", 2000, {10, 10}, {15, 10}, {}};
  profile.speed->methods = {{"tidal", "64", "reselect=none", {12, 5}}, {"lessismore", "32", "", {4, 1}}};
  return profile;
}

plan::Plan tidal_plan(const plan::Profile& profile) {
  policies::PolicyOptions options;
  options.budget = plan::parse_budget("64");
  options.extra["reselect"] = "none";
  options.profile = &profile;
  return policies::make_plan("tidal", kShape, options);
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

class Auto : public ::testing::Test {
 protected:
  void SetUp() override { put(timed_profile()); }
  void put(const plan::Profile& profile) { write_file(file_, plan::to_json(profile)); }
  /// A profile by which lessismore at 32 is not for copying passkeys.
  void put_loser() {
    plan::Profile profile = timed_profile();
    for (plan::Kept& row : profile.kept) {
      if (row.method == "lessismore" && row.task == "single") row.task = "passkey";
    }
    profile.lessismore = plan::LessIsMoreProfile{2};
    put(profile);
  }
  std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) const {
    words.insert(words.end(), {"--attn-profile", file_.string()});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  /// A run on one thread, which is what the profile was measured with.
  std::vector<std::string> run(const std::vector<std::string>& more) const {
    return with({"run", "-m", model(), "-t", "1", "--attn", "auto"}, more);
  }

  std::filesystem::path file_ = scratch("timed.json");
};

const std::string kTakesTidal = "--attn auto takes tidal:64,reselect=none: keeps the answers of every kind of task; ";

TEST_F(Auto, TakesByTheContextAndSaysWhyInOneLine) {
  const Outcome longer = run_program(run({"-p", prose(60), "-n", "3", "--json"}));
  ASSERT_EQ(longer.code, 0) << longer.err;
  const auto json = nlohmann::json::parse(longer.out);
  EXPECT_EQ(json["attention"]["policy"], "tidal");
  EXPECT_EQ(json["attention"]["budget"], "64");
  const std::int64_t tokens = json["prompt_tokens"].get<std::int64_t>() + 3;
  ASSERT_GT(tokens, 400) << "the prompt is too short for what this tests";
  const std::string line =
      fmt::format("{}{:.1f} ms a token at {} tokens, dense attention {:.1f} ms\n", kTakesTidal,
                  12 + 0.005 * static_cast<double>(tokens), tokens, 10 + 0.010 * static_cast<double>(tokens));
  EXPECT_EQ(longer.err.rfind(line, 0), 0u) << longer.err;
  EXPECT_EQ(count(longer.err, "--attn auto"), 1u) << longer.err;
  EXPECT_EQ(count(longer.err, "warning"), 0u) << longer.err;

  const Outcome brief = run_program(run({"-p", "the river", "-n", "3", "--json"}));
  ASSERT_EQ(brief.code, 0) << brief.err;
  EXPECT_EQ(nlohmann::json::parse(brief.out)["attention"]["policy"], "full");
  EXPECT_NE(brief.err.find("--attn auto takes full: "), std::string::npos) << brief.err;
  EXPECT_NE(brief.err.find("nothing that keeps the answers is a tenth faster\n"), std::string::npos) << brief.err;
  EXPECT_EQ(run_program(run({"-p", "the river", "-n", "3", "-q"})).err, "");
}

TEST_F(Auto, QualityByDivergence) {
  const auto taken = [&](const std::string& quality) {
    const Outcome outcome = run_program(run({"-p", "the river", "-n", "2", "--attn-quality", quality}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.err;
  };
  EXPECT_NE(taken("kl=0.5").find("--attn auto takes lessismore:32: KL to dense 0.3000; "), std::string::npos);
  EXPECT_NE(taken("kl=0.1").find("--attn auto takes full: "), std::string::npos);
  const Outcome bad = run_program(run({"-p", "x", "--attn-quality", "kl=x"}));
  EXPECT_EQ(bad.code, 2);
  EXPECT_EQ(bad.err.rfind("error: --attn-quality 'kl=x': give answers, or kl=", 0), 0u) << bad.err;
}

TEST_F(Auto, TimesOfThisMachineAreFoundAmongThoseOfOthers) {
  plan::Profile profile = timed_profile();
  profile.elsewhere = {*profile.speed};
  profile.speed->processor = "A GPU";
  profile.speed->dense = {0.1, 0};
  put(profile);
  const Outcome outcome = run_program(run({"-p", prose(60), "-n", "3"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err.rfind(kTakesTidal, 0), 0u) << outcome.err;
  EXPECT_EQ(count(outcome.err, "warning"), 0u) << outcome.err;
}

TEST_F(Auto, AMethodIsDenseWhereItIsNotFaster) {
  plan::Profile profile = timed_profile();
  profile.roles = plan::RolesProfile{{1, 1, 0, 0, 0, 0, 0, 0}};
  profile.speed->methods = {{"lychee-decode", "64", "", {12, 5}}};  // faster from 401 tokens on
  put(profile);
  const auto ask = [&](std::vector<std::string> more, const std::string& prompt) {
    more.insert(more.end(), {"-p", prompt, "-n", "3", "--json"});
    return run_program(with({"run", "-m", model(), "-t", "1", "--attn", "lychee-decode", "--attn-budget", "64"}, more));
  };
  const auto sparse = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out)["attention"]["sparse_steps"].get<int>();
  };
  const std::string note = "dense below 401 tokens, from which lychee-decode is faster by the profile's times";
  const Outcome brief = ask({}, prose(10));
  EXPECT_LT(nlohmann::json::parse(brief.out)["prompt_tokens"], 390);
  EXPECT_GT(nlohmann::json::parse(brief.out)["prompt_tokens"], 80);
  EXPECT_EQ(sparse(brief), 0);
  EXPECT_NE(brief.err.find(note), std::string::npos) << brief.err;
  EXPECT_GT(sparse(ask({}, prose(60))), 0);
  const Outcome asked = ask({"--attn-min-ctx", "0"}, prose(10));
  EXPECT_GT(sparse(asked), 0);
  EXPECT_EQ(asked.err.find(note), std::string::npos) << asked.err;
  profile.speed->threads = 7;
  put(profile);
  EXPECT_GT(sparse(ask({}, prose(10))), 0) << "times of another machine say nothing here";
}

TEST_F(Auto, ANamedMethodSaysWhatItIsNotFor) {
  put_loser();
  const auto said = [&](const std::string& budget, std::vector<std::string> more) {
    more.insert(more.end(), {"-p", prose(60), "-n", "2"});
    const Outcome outcome =
        run_program(with({"run", "-m", model(), "-t", "1", "--attn", "lessismore", "--attn-budget", budget}, more));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return count(outcome.err,
                 "by the profile lessismore at this budget is not for copying passkeys; --attn auto takes what keeps "
                 "all answers\n");
  };
  EXPECT_EQ(said("32", {}), 1u);
  EXPECT_EQ(said("33", {}), 0u) << "nothing was measured there";
  EXPECT_EQ(said("32", {"--lossless"}), 0u) << "its answers are dense attention's";
  EXPECT_EQ(said("32", {"-q"}), 0u);
}

TEST_F(Auto, AMethodOfADialogueSaysWhatItIsNotFor) {
  put_loser();
  const auto said = [&](const std::string& input, std::vector<std::string> more) {
    more.insert(more.end(), {"-n", "2", "--raw"});
    const Outcome outcome = run_program(with({"run", "-m", model(), "-t", "1", "-i"}, more), {.input = input});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return count(outcome.err, "by the profile lessismore at this budget is not for copying passkeys");
  };
  EXPECT_EQ(said("/attn lessismore 32\n/attn full\n/attn lessismore 33\n", {}), 1u);
  EXPECT_EQ(said("/attn lessismore 32\n", {"--attn", "auto"}), 1u);
  EXPECT_EQ(said("/attn lessismore 32\n", {"--lossless"}), 0u);
  EXPECT_EQ(said("/attn full\n", {"--attn", "auto"}), 0u);
}

TEST_F(Auto, AnotherMachineIsAWarning) {
  plan::Profile profile = timed_profile();
  profile.speed->threads = 7;
  put(profile);
  const Outcome outcome = run_program(run({"-p", "the river", "-n", "2"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err.rfind("warning: the profile's times were measured on '", 0), 0u) << outcome.err;
  EXPECT_NE(outcome.err.find("with 7 threads and a cache of bf16, and this is '"), std::string::npos) << outcome.err;
  EXPECT_EQ(count(outcome.err, "warning"), 1u) << outcome.err;
  put(timed_profile());
  const Outcome type = run_program(run({"-p", "the river", "-n", "2", "--kv-type", "f16"}));
  EXPECT_NE(type.err.find("and a cache of f16; --attn auto uses them all the same"), std::string::npos) << type.err;
}

TEST_F(Auto, PlanShowsTheCandidates) {
  const std::vector<std::string> words = with({"plan", "-m", model(), "--attn", "auto"}, {"--tokens", "2000"});
  const Outcome table = run_program(words);
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("| method | answers kept | agreement | KL to dense | ms a token at 2000 | chosen |\n"),
            std::string::npos)
      << table.out;
  for (const char* row :
       {"| tidal:64,reselect=none | 100 % | 88 % | 0.0200 | 22.00 | yes |\n",
        "| lessismore:32 | 50 % | 50 % | 0.3000 | 6.00 | answers 50 % of single, dense attention 100 % "
        "|\n",
        "| full | 100 % | 100 % | 0.0000 | 30.00 | slower |\n"}) {
    EXPECT_NE(table.out.find(row), std::string::npos) << row << " in\n" << table.out;
  }
  const plan::Plan expected = tidal_plan(timed_profile());
  EXPECT_NE(table.out.find(plan::explain(expected)), std::string::npos) << table.out;
  auto json = words;
  json.push_back("--json");
  EXPECT_EQ(plan::from_json(run_program(json).out), expected);
  const Outcome none = run_program({"plan", "-m", model(), "--attn", "tidal", "--tokens", "100"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("--tokens has no effect without --attn auto"), std::string::npos) << none.err;
  EXPECT_NE(run_program({"plan", "--list"}).out.find("auto\n"), std::string::npos);
}

TEST_F(Auto, LosslessTakesADraftAndKeepsDenseAttentionsAnswer) {
  plan::Profile profile = timed_profile();
  profile.speed->methods[0].time = {1, 0};
  put(profile);
  const auto dense = run_for_json({"run", "-m", model(), "-t", "1", "-p", prose(60), "-n", "12"});
  const Outcome outcome = run_program(run({"-p", prose(60), "-n", "12", "--lossless", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(json["tokens"], dense["tokens"]);
  EXPECT_EQ(json["attention"]["policy"], "tidal");
  EXPECT_NE(outcome.err.find(
                "--attn auto takes drafts of tidal:64,reselect=none: 88 % of its tokens are dense attention's; "),
            std::string::npos)
      << outcome.err;

  profile.speed->verify = {1000, 0};  // no draft pays
  put(profile);
  const Outcome none = run_program(run({"-p", prose(60), "-n", "12", "--lossless", "--json"}));
  ASSERT_EQ(none.code, 0) << none.err;
  EXPECT_EQ(nlohmann::json::parse(none.out)["tokens"], dense["tokens"]);
  EXPECT_NE(none.err.find("--attn auto takes full: "), std::string::npos) << none.err;
}

TEST_F(Auto, ADialogueChoosesAnewForEachQuestion) {
  const std::vector<std::string> words = run({"-i", "-n", "2"});
  const Outcome outcome = run_program(words, {.input = "the river\n" + prose(60) + "\n/attn full\nwho?\n/attn auto\n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::size_t full = outcome.err.find("--attn auto takes full: "), tidal = outcome.err.find(kTakesTidal);
  ASSERT_NE(full, std::string::npos) << outcome.err;
  ASSERT_NE(tidal, std::string::npos) << outcome.err;
  EXPECT_LT(full, tidal);
  EXPECT_EQ(count(outcome.err, kTakesTidal), 1u) << "said where it changes: " << outcome.err;
  EXPECT_EQ(count(outcome.err, "error"), 0u) << outcome.err;
}

TEST_F(Auto, EvaluationsAndBenchmarksTakeIt) {
  const auto text = scratch("text.txt");
  write_file(text, prose(300));
  const std::vector<std::string> sets{"eval", "sets", "-m", model(), "-t", "1", "-f", text.string()};
  const Outcome evaluated = run_program(with(sets, {"--attn", "auto", "--prompt", "900", "--steps", "3", "--json"}));
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NE(evaluated.err.find(kTakesTidal), std::string::npos) << evaluated.err;

  const std::vector<std::string> bench{"bench", "decode", "-m", model(), "-t", "1", "-n", "16", "-r", "1"};
  const Outcome decoded =
      run_program(with(bench, {"--depth", "16,900", "--arms", "full,auto,quest:64", "--format", "json"}));
  ASSERT_EQ(decoded.code, 0) << decoded.err;
  const auto rows = nlohmann::json::parse(decoded.out)["rows"];
  ASSERT_EQ(rows.size(), 6u) << decoded.out;
  const auto at = [&](const char* arm, int depth) {
    for (const auto& row : rows) {
      if (row["arm"] == arm && row["tokens_before"] == depth) return row;
    }
    return nlohmann::json();
  };
  EXPECT_EQ(at("auto", 16)["kept_ratio"], 1.0) << "dense attention there: " << decoded.out;
  EXPECT_LT(at("auto", 900)["kept_ratio"], 1.0) << decoded.out;
  EXPECT_NE(decoded.err.find("--attn auto takes full: "), std::string::npos) << decoded.err;
  EXPECT_NE(decoded.err.find(kTakesTidal), std::string::npos) << decoded.err;

  const Outcome served = run_program(with({"bench", "serve", "-m", model(), "-t", "1", "--requests", "2", "--rate",
                                           "inf", "--prompt-tokens", "900", "-n", "2", "--arms", "auto"},
                                          {"--format", "json"}));
  EXPECT_EQ(served.code, 0) << served.err;
  EXPECT_NE(served.err.find(kTakesTidal), std::string::npos) << served.err;
  const Outcome odd = run_program(with(bench, {"--arms", "auto:512"}));
  EXPECT_EQ(odd.code, 2);
  EXPECT_NE(odd.err.find("chooses budget and options itself"), std::string::npos) << odd.err;
}

TEST_F(Auto, WithoutTimesItIsOneErrorWithTheCure) {
  plan::Profile profile = timed_profile();
  profile.speed.reset();
  put(profile);
  const std::vector<std::string> unknown{"run", "-m", model(), "-p", "x", "--attn", "auto"};
  auto off = unknown;
  off.insert(off.end(), {"--attn-profile", "none"});
  for (const auto& words :
       {unknown, off, run({"-p", "x"}), std::vector<std::string>{"plan", "-m", model(), "--attn", "auto"},
        std::vector<std::string>{"bench", "decode", "-m", model(), "--depth", "16", "--arms", "auto"}}) {
    const Outcome outcome = run_program(words);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(count(outcome.err, "\n"), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find("'glimpse calibrate -m MODEL'"), std::string::npos) << outcome.err;
  }
  profile = timed_profile();
  profile.model.layers = 5;
  profile.tidal.reset();
  put(profile);
  const Outcome other = run_program(run({"-p", "x"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("the model is "), std::string::npos) << other.err;
}

}  // namespace
}  // namespace glimpse::cli
