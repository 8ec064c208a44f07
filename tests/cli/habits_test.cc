// Options of llama.cpp: each gets a sentence that says what glimpse has instead.
#include "glimpse/cli/habits.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

std::vector<std::string> flags_of(const Habit& habit) {
  std::istringstream stream{std::string(habit.flags)};
  std::vector<std::string> flags;
  for (std::string flag; std::getline(stream, flag, ',');) flags.push_back(flag);
  return flags;
}

TEST(Habits, EachFlagStandsOnceAndHasASentence) {
  std::set<std::string> seen;
  for (const Habit& habit : habits()) {
    EXPECT_FALSE(habit.answer.empty());
    EXPECT_LE(habit.answer.size(), 130u) << habit.answer;
    for (const std::string& flag : flags_of(habit)) {
      EXPECT_TRUE(seen.insert(flag).second) << flag;
      EXPECT_EQ(find_habit(flag), &habit);
    }
  }
  EXPECT_EQ(find_habit("--frobnicate"), nullptr);
}

TEST(Habits, EachIsAnsweredInOneLine) {
  const std::set<std::string> of_run{"-c", "--ctx-size", "--ctx"};  // which run has
  for (const Habit& habit : habits()) {
    for (const std::string& flag : flags_of(habit)) {
      if (of_run.contains(flag)) continue;
      for (const std::vector<std::string>& words :
           {run_words({"-p", "x", flag, "9"}), std::vector<std::string>{"run", flag + "=9"}}) {
        const Outcome outcome = run_program(words);
        EXPECT_EQ(outcome.code, 2) << flag;
        EXPECT_EQ(outcome.out, "") << flag;
        EXPECT_EQ(outcome.err, "error: '" + flag + "' is an option of llama.cpp: " + std::string(habit.answer) + "\n");
      }
    }
  }
}

TEST(Habits, ValuesAndOwnFlagsAreNoHabits) {
  EXPECT_EQ(run_program(run_words({"-p", "-ngl", "-n", "1"})).code, 0) << "a value, whatever it looks like";
  EXPECT_EQ(run_program(run_words({"-p", "x", "-n1", "-c", "64"})).code, 0);
  const Outcome bench = run_program({"bench", "attention", "--mlock"});
  EXPECT_NE(bench.err.find("option of llama.cpp"), std::string::npos) << bench.err;
  const Outcome context = run_program({"plan", "-c", "64"});
  EXPECT_NE(context.err.find("option of llama.cpp"), std::string::npos) << context.err;
}

}  // namespace
}  // namespace glimpse::cli
