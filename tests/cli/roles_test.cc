// glimpse calibrate roles, with a program beside it that answers for glimpse-gradients: what is written, that an
// interrupted training goes on, and one line for what cannot be.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "glimpse/plan/profile.h"
#include "tests/cli/process.h"
#include "tests/support/places.h"

namespace glimpse::cli {
namespace {

constexpr int kHeads = 8;  // of the small model, two of them in layer 0

/// A copy of the program in a folder of its own.
Setting installed() {
  Setting setting;
  setting.program = scratch("bin");
  std::filesystem::create_directory(setting.program);
  setting.program /= "glimpse";
  std::filesystem::copy_file(test::glimpse_program(), setting.program);
  return setting;
}

/// Beside it a program for which the last two heads are worth something; `before` runs before each answer, where n
/// counts.
void install_gradients(const Setting& setting, const std::string& before = "") {
  const auto path = setting.program.parent_path() / "glimpse-gradients";
  write_file(path, R"(#!/usr/bin/env python3
import os, signal, sys
n = 0
for line in sys.stdin:
    words = line.split()
    tokens = int(words[4])
    gates = [float(word) for word in words[6 + tokens:]]
    assert int(words[5 + tokens]) == len(gates)
    worth = [0.01] * (len(gates) - 2) + [50, 100]
    n += 1
)" + (before.empty() ? "" : "    " + before + "\n") +
                       R"(    loss = sum(w * (1 - z) ** 2 for w, z in zip(worth, gates))
    print("loss", loss, len(gates), *[-2 * w * (1 - z) for w, z in zip(worth, gates)], flush=True)
)");
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

std::vector<std::string> words_for(const std::filesystem::path& profile, const std::vector<std::string>& more = {}) {
  std::vector<std::string> words{"calibrate",
                                 "roles",
                                 "-m",
                                 model(),
                                 "-c",
                                 "2500",
                                 "-t",
                                 "1",
                                 "-o",
                                 profile.string(),
                                 "--retrieval",
                                 "50%",
                                 "--train-steps",
                                 "120",
                                 "--learning-rate",
                                 "0.05"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// At which the method's answers and times are known.
std::set<std::string> budgets_of(const plan::Profile& profile, std::string_view method = "lychee-decode") {
  std::set<std::string> timed, kept;
  for (const plan::Kept& row : profile.kept) {
    if (row.method == method) kept.insert(row.budget);
  }
  for (const plan::MethodTime& row : profile.speed->methods) {
    if (row.method == method) timed.insert(row.budget);
  }
  EXPECT_EQ(timed, kept);
  return kept;
}

TEST(CalibrateRoles, WithoutTheProgramItSaysHowToGetIt) {
  const Setting setting = installed();
  expect_refused(words_for(scratch("made.json")), "scripts/build roles", setting);
}

TEST(CalibrateRoles, WritesRolesACurveAndAComparison) {
  const Setting setting = installed();
  install_gradients(setting);
  const auto profile = scratch("made.json"), curve = scratch("curve.tsv");
  const Outcome outcome = run_program(words_for(profile, {"--curve", curve.string(), "--exact"}), setting);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const plan::Profile read = plan::parse_profile(read_file(profile));
  ASSERT_TRUE(read.roles);
  ASSERT_EQ(read.roles->probability.size(), static_cast<std::size_t>(kHeads));
  EXPECT_EQ(read.roles->probability, (std::vector<double>{1, 1, 0, 0, 0, 0, 1, 1})) << "layer 0 and the worthiest";
  const std::string table = read_file(curve);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 121);
  for (const char* row : {"| trained | 30% |", "| random | 30% |", "| even | 10% |", "| retrieval score | 10% |"}) {
    EXPECT_NE(outcome.out.find(row), std::string::npos) << row << outcome.out;
  }
  EXPECT_FALSE(std::filesystem::exists(profile.string() + ".training"));
  EXPECT_FALSE(std::filesystem::exists(profile.string() + ".part"));
  EXPECT_EQ(budgets_of(read), (std::set<std::string>{"512", "1024", "10%"}));
  EXPECT_NE(outcome.out.find("| lychee-decode | 1024 |"), std::string::npos) << outcome.out;
  const Outcome candidates =
      run_program({"plan", "-m", model(), "--attn", "auto", "--attn-profile", profile.string(), "--tokens", "3900"});
  EXPECT_NE(candidates.out.find("lychee-decode:10%"), std::string::npos) << candidates.out << candidates.err;
  const Outcome run = run_program(
      run_words({"-p", "hello", "--attn", "lychee-decode", "--attn-budget", "64", "--attn-profile", profile.string()}));
  EXPECT_EQ(run.code, 0) << run.err;
}

// A shorter training measures in prompts as long as those of the other methods, whose rows and times stay.
TEST(CalibrateRoles, WhatTheRolesKeepStandsBesideTheOtherMethods) {
  const Setting setting = installed();
  install_gradients(setting);
  const auto profile = scratch("made.json");
  ASSERT_EQ(run_program({"calibrate", "tidal", "-m", model(), "-c", "3500", "-t", "1", "-o", profile.string()}).code,
            0);
  const plan::Profile before = plan::parse_profile(read_file(profile));
  const Outcome outcome = run_program(words_for(profile, {"-c", "2500"}), setting);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find("passkeys in 2308 tokens"), std::string::npos) << outcome.out;
  const plan::Profile read = plan::parse_profile(read_file(profile));
  EXPECT_EQ(read.tidal, before.tidal);
  EXPECT_EQ(read.speed->tokens, 3500);
  EXPECT_EQ(budgets_of(read, "tidal"), budgets_of(before, "tidal"));
  EXPECT_EQ(budgets_of(read), (std::set<std::string>{"512", "1024", "10%"}));
}

TEST(CalibrateRoles, TimesOfAnotherMachineLeaveTheMethodOutInOneLine) {
  const Setting setting = installed();
  install_gradients(setting);
  const auto profile = scratch("made.json");
  ASSERT_EQ(run_program({"calibrate", "tidal", "-m", model(), "-c", "2500", "-t", "1", "-o", profile.string()}).code,
            0);
  plan::Profile other = plan::parse_profile(read_file(profile));
  other.speed->processor = "Another";
  write_file(profile, plan::to_json(other));
  const Outcome outcome = run_program(words_for(profile, {"-c", "2500"}), setting);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find("warning: the profile's times were measured on 'Another' with -t 1"), std::string::npos);
  const plan::Profile read = plan::parse_profile(read_file(profile));
  EXPECT_EQ(read.speed, other.speed);
  EXPECT_TRUE(read.roles);
}

TEST(CalibrateRoles, AnInterruptedTrainingGoesOn) {
  const Setting setting = installed();
  const auto whole = scratch("whole.json"), part = scratch("part.json");
  const std::filesystem::path state = part.string() + ".training";
  install_gradients(setting);
  ASSERT_EQ(run_program(words_for(whole), setting).code, 0);
  install_gradients(setting, "if n == 33: os.kill(os.getppid(), signal.SIGINT)");
  const Outcome stopped = run_program(words_for(part), setting);
  EXPECT_EQ(stopped.code, 130) << stopped.err;
  EXPECT_FALSE(std::filesystem::exists(part));
  ASSERT_TRUE(std::filesystem::exists(state));
  install_gradients(setting, "if n == 31: sys.exit(1)");  // at step 64 of all
  expect_refused(words_for(part, {"-q"}), "ended without an answer", setting);
  ASSERT_TRUE(std::filesystem::exists(state));
  install_gradients(setting);
  const Outcome rest = run_program(words_for(part), setting);
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_NE(rest.err.find("going on behind step 60"), std::string::npos) << rest.err;
  plan::Profile first = plan::parse_profile(read_file(whole)), second = plan::parse_profile(read_file(part));
  ASSERT_TRUE(first.speed && second.speed);
  second.speed = first.speed;
  EXPECT_EQ(second, first);
  EXPECT_FALSE(std::filesystem::exists(state));
}

TEST(CalibrateRoles, AStateOfSomethingElse) {
  const Setting setting = installed();
  install_gradients(setting, "if n == 25: sys.exit(1)");
  const auto profile = scratch("made.json");
  const std::filesystem::path state = profile.string() + ".training";
  expect_refused(words_for(profile), "ended without an answer", setting);
  ASSERT_TRUE(std::filesystem::exists(state));
  install_gradients(setting, "sys.exit(1)");
  const Outcome other = run_program(words_for(profile, {"-s", "9"}), setting);
  EXPECT_NE(other.err.find("of another model or other options and is replaced"), std::string::npos) << other.err;
  write_file(state, "my notes\n");
  expect_refused(words_for(profile), "holds no training; move it away", setting);
  EXPECT_EQ(read_file(state), "my notes\n");
}

TEST(CalibrateRoles, BadInputIsOneLine) {
  const Setting setting = installed();
  install_gradients(setting);
  const auto profile = scratch("made.json");
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    expect_refused(words_for(profile, more), part, setting);
  };
  refused({"--gate", "hard-kumar"}, "did you mean 'hard-kuma'?");
  refused({"--hand-on", "roles"}, "did you mean 'role'?");
  refused({"--retrieval", "2"}, "the model has 8 KV heads");
  refused({"--retrieval", "many"}, "the model has 8 KV heads");
  refused({"--train-budget", "p=0.9"}, "such as 30%");
  refused({"--train-budget", "x"}, "--train-budget");
  refused({"--curve", profile.string()}, "would destroy");
  refused({"-c", "600"}, "a prompt of 408 tokens");
  const auto broken = scratch("broken.json");
  write_file(broken, "{\"glimpse_profile\": 1, ");
  expect_refused(words_for(broken), "not valid JSON", setting);
  expect_refused({"calibrate", "-m", model(), "--gate", "clipped"}, "has no effect without the part 'roles'");
  expect_refused({"calibrate", "tidal", "-m", model(), "--exact"}, "has no effect without the part 'roles'");
  EXPECT_FALSE(std::filesystem::exists(profile));
}

}  // namespace
}  // namespace glimpse::cli
