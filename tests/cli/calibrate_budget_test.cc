// glimpse calibrate budget: a profile whose budgets methods take with --attn-budget profile, and one line for what
// cannot be.
#include <gtest/gtest.h>

#include <filesystem>

#include "glimpse/plan/profile.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

std::vector<std::string> words_for(const std::filesystem::path& profile, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"calibrate", "budget", "-m", model(), "-c", "800", "-t", "1", "-o", profile.string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(CalibrateBudget, WritesBudgetsThatMethodsTake) {
  const auto profile = scratch("made.profile.json");
  const Outcome outcome = run_program(words_for(profile, {"--coverage", "0.6"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("| the profile: 60.00 % of the mass |"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("| the same for all heads |"), std::string::npos) << outcome.out;
  const plan::Profile read = plan::parse_profile(read_file(profile));
  ASSERT_TRUE(read.budget);
  EXPECT_TRUE(read.fingerprint);
  EXPECT_EQ(read.budget->coverage, 0.6);
  EXPECT_EQ(read.budget->context, 800 - 192);
  EXPECT_FALSE(std::filesystem::exists(profile.string() + ".part"));
  for (const char* method : {"tidal", "quest", "oracle", "lychee-cluster"}) {
    const Outcome run = run_program(run_words(
        {"-p", "hello", "--attn", method, "--attn-budget", "profile", "--attn-profile", profile.string(), "--json"}));
    EXPECT_EQ(run.code, 0) << run.err;
  }
  const Outcome plan = run_program(
      {"plan", "-m", model(), "--attn", "oracle", "--attn-budget", "profile", "--attn-profile", profile.string()});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("%,min="), std::string::npos) << plan.out;
  const Outcome page = run_program({"inspect", profile.string()});
  EXPECT_NE(page.out.find("they hold 60 % of its mass on average"), std::string::npos) << page.out;
  EXPECT_NE(page.out.find("budgets, of the context"), std::string::npos) << page.out;
  const auto drawn = scratch("page.html");
  EXPECT_EQ(run_program({"inspect", profile.string(), "--html", drawn.string()}).code, 0);
  EXPECT_NE(read_file(drawn).find("Budgets, of the context"), std::string::npos);
  // Another target over it, in the share of steps; what else the profile has stays.
  const Outcome again = run_program(words_for(profile, {"--kl", "5", "--of-steps", "0.9"}));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(run_program(words_for(scratch("together.json"), {"--together"})).code, 0);
  EXPECT_TRUE(plan::parse_profile(read_file(scratch("together.json"))).budget->together);
  const plan::Profile second = plan::parse_profile(read_file(profile));
  EXPECT_EQ(second.budget->divergence, 5);
  EXPECT_EQ(second.budget->steps, 0.9);
}

TEST(CalibrateBudget, BadInputIsOneLine) {
  const auto out = scratch("made.json");
  expect_refused(words_for(out, {"--coverage", "1"}), "--coverage '1'");
  expect_refused(words_for(out, {"--coverage", "0"}), "--coverage '0'");
  expect_refused(words_for(out, {"--coverage", "nan"}), "--coverage 'nan'");
  expect_refused(words_for(out, {"--of-steps", "1.5"}), "--of-steps '1.5'");
  expect_refused(words_for(out, {"--kl", "0"}), "--kl '0'");
  expect_refused(words_for(out, {"--kl", "0.1", "--coverage", "0.9"}), "beside --kl, which finds the coverage");
  expect_refused(words_for(out, {"--together", "--of-steps", "0.5"}), "beside --together, which is a mean");
  expect_refused({"calibrate", "tidal", "-m", model(), "--coverage", "0.9", "-o", out.string()},
                 "has no effect without the part 'budget'");
  expect_refused({"calibrate", "budget", "-m", model(), "--gate", "clipped", "-o", out.string()},
                 "has no effect without the part 'roles'");
  expect_refused({"calibrate", "budget", "-m", model("one-layer"), "-c", "800", "-o", out.string()}, "has 1 layer");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(CalibrateBudget, BudgetsThatAreNotThereAreOneLine) {
  const auto text = scratch("profile.json");
  plan::Profile profile;
  profile.model = {"llama", "no such model", 4, 4, 2, 32, 0};
  profile.budget = plan::BudgetProfile{.context = 100, .coverage = 0.9, .tokens = std::vector<int>(8, 16)};
  write_file(text, plan::to_json(profile));
  const auto refused = [](const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> words{"-p", "hello", "--attn-budget", "profile"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(run_words(words), part);
  };
  refused({"--attn", "quest", "--attn-profile", text.string()}, "calibrate this model");
  refused({"--attn", "quest", "--attn-profile", "none"}, "'glimpse calibrate budget -m MODEL' makes one");
  refused({"--attn", "quest"}, "there is no profile with budgets");
  refused({"--attn", "auto"}, "--attn-budget");
  expect_refused(run_words({"-p", "hello", "--attn", "quest", "--attn-budget", "profiles"}), "'profiles'");
}

}  // namespace
}  // namespace glimpse::cli
