// glimpse calibrate methods: rows of methods that calibration has nothing to choose for, in a profile that is there.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "glimpse/plan/profile.h"
#include "tests/cli/process.h"
#include "tests/support/models.h"
#include "tests/support/places.h"

namespace glimpse::cli {
namespace {

using testing::HasSubstr;

std::vector<std::string> words_for(const std::filesystem::path& profile, const std::string& arms) {
  return {"calibrate", "methods", "-m", model("short"), "-t", "1", "-o", profile.string(), "--arms", arms};
}

/// Methods with their budgets and options.
std::set<std::string> rows_of(const plan::Profile& profile) {
  std::set<std::string> rows;
  for (const plan::Kept& row : profile.kept) rows.insert(row.method + " " + row.budget + " " + row.options);
  return rows;
}

TEST(CalibrateMethods, AddRowsThatAreMeasuredAsTheOthers) {
  const auto path = scratch("made.json");
  const Outcome whole = run_program({"calibrate", "-m", model("short"), "-c", "1400", "-t", "1", "-o", path.string()});
  ASSERT_EQ(whole.code, 0) << whole.err;
  const plan::Profile before = plan::parse_profile(read_file(path));
  const Outcome outcome = run_program(words_for(path, "quest:256,block=32,tidal,arkvale:20%"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_THAT(outcome.out, HasSubstr("| quest,block=32 | 256 |"));
  const plan::Profile after = plan::parse_profile(read_file(path));
  EXPECT_EQ(after.kascade, before.kascade) << "other parts stay";
  EXPECT_EQ(after.speed->tokens, before.speed->tokens);
  EXPECT_TRUE(after.elsewhere.empty());

  std::set<std::string> wanted = rows_of(before);
  wanted.insert({"quest 256 block=32", "arkvale 20% "});
  EXPECT_EQ(rows_of(after), wanted);
  std::set<std::string> timed;
  for (const plan::MethodTime& row : after.speed->methods)
    timed.insert(row.method + " " + row.budget + " " + row.options);
  EXPECT_EQ(timed, wanted);
  // The same questions of the same prompts: a method alone gives what it gave among the others.
  int compared = 0;
  for (const plan::Kept& row : before.kept) {
    const auto same = std::find_if(after.kept.begin(), after.kept.end(), [&](const plan::Kept& other) {
      return other.method == row.method && other.budget == row.budget && other.options == row.options &&
             other.task == row.task;
    });
    ASSERT_NE(same, after.kept.end());
    EXPECT_NEAR(same->divergence, row.divergence, 1e-6) << row.method << row.budget << row.task;
    EXPECT_NEAR(same->coverage, row.coverage, 1e-6);
    EXPECT_EQ(same->agreement, row.agreement);
    compared += row.method == "tidal" ? 1 : 0;
  }
  EXPECT_GT(compared, 0);
  const Outcome candidates = run_program(
      {"plan", "-m", model("short"), "--attn", "auto", "--attn-profile", path.string(), "--tokens", "1300"});
  ASSERT_EQ(candidates.code, 0) << candidates.err;
  EXPECT_THAT(candidates.out, HasSubstr("quest:256,block=32"));
}

TEST(CalibrateMethods, MakeAProfileWhereThereIsNone) {
  const auto path = scratch("made.json");
  std::vector<std::string> words = words_for(path, "oracle:128");
  words.insert(words.end(), {"-c", "1400"});
  const Outcome outcome = run_program(words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const plan::Profile made = plan::parse_profile(read_file(path));
  EXPECT_EQ(rows_of(made), std::set<std::string>{"oracle 128 "});
  EXPECT_FALSE(made.kascade || made.tidal);
  EXPECT_TRUE(made.fingerprint.has_value());
  EXPECT_LT(made.kept.front().coverage, 1);
  EXPECT_GT(made.kept.front().divergence, 0);
}

TEST(CalibrateMethods, AMethodWithOtherOptionsIsAnotherRow) {
  const auto path = scratch("made.json");
  std::vector<std::string> words = words_for(path, "quest:256,quest:256,block=64");
  words.insert(words.end(), {"-c", "1400"});
  const Outcome outcome = run_program(words);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(rows_of(plan::parse_profile(read_file(path))), (std::set<std::string>{"quest 256 ", "quest 256 block=64"}));
  EXPECT_THAT(outcome.out, HasSubstr("| quest | 256 |"));
  EXPECT_THAT(outcome.out, HasSubstr("| quest,block=64 | 256 |"));
}

TEST(CalibrateMethods, BadInputIsOneLine) {
  const auto path = scratch("made.json");
  const auto refused = [&](const std::string& arms, const std::string& says) {
    std::vector<std::string> words = words_for(path, arms);
    words.insert(words.end(), {"-c", "1400"});
    expect_refused(words, says);
  };
  expect_refused({"calibrate", "methods", "-m", model("short"), "-o", path.string()}, "no method: give --arms");
  expect_refused({"calibrate", "tidal", "-m", model("short"), "-o", path.string(), "--arms", "quest"},
                 "--arms has no effect without the part 'methods'");
  refused("full", "'full' is dense attention");
  refused("auto", "'auto' is a choice among those that were measured");
  refused("kwest:256", "unknown attention policy 'kwest'");
  refused("quest:256,quest:256", "'quest:256' is given twice");
  refused("quest:p=0.9", "'quest:p=0.9': a row of a profile has a number of tokens or a share");
  refused("tidal:profile", "a row of a profile has a number of tokens or a share");
  refused("quest:256,min-ctx=100", "no min-ctx");
  refused("quest:60%", "quest:60% is not below half of the prompts' 1208 tokens");
  refused("quest:256,blok=32", "blok");
  for (const char* forgetful : {"streaming:256", "duo", "h2o", "tova", "raas"}) refused(forgetful, "it forgets tokens");
  EXPECT_FALSE(std::filesystem::exists(path));
  // Rows of one profile are measured alike.
  ASSERT_EQ(
      run_program({"calibrate", "tidal", "-m", model("short"), "-c", "1400", "-t", "1", "-o", path.string()}).code, 0);
  const std::string before = read_file(path);
  std::vector<std::string> words = words_for(path, "quest:256");
  words.insert(words.end(), {"-c", "1300"});
  expect_refused(words, "-c 1300: the profile's other methods were measured at -c 1400");
  EXPECT_EQ(read_file(path), before);
}

}  // namespace
}  // namespace glimpse::cli
