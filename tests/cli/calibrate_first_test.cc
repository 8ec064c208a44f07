// A method that needs a profile and has none makes one first, at a terminal or with --calibrate.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "glimpse/plan/profile.h"
#include "tests/cli/process.h"
#include "tests/cli/terminal.h"

namespace glimpse::cli {
namespace {

namespace fs = std::filesystem;

const std::string kFirst = "it is calibrated first, once; the profile goes to '";

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder)) return files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

class CalibrateFirst : public ::testing::Test {
 protected:
  Outcome run(const std::vector<std::string>& more, const std::string& of = "short") const {
    std::vector<std::string> words{"run", "-m", model(of), "-t", "1", "-p", "the river", "-n", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, setting_);
  }
  fs::path data_ = scratch("data");
  Setting setting_{.environment = {"XDG_DATA_HOME=" + data_.string()}};
};

TEST_F(CalibrateFirst, WithTheFlagOnceAndThenNoMore) {
  const Outcome first = run({"--attn", "kascade", "--calibrate"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.err.find(kFirst), std::string::npos) << first.err;
  EXPECT_NE(first.err.find("the model's profile is used"), std::string::npos) << first.err;
  EXPECT_EQ(first.err.find("warning"), std::string::npos) << first.err;
  const std::vector<fs::path> files = files_in(data_);
  ASSERT_EQ(files.size(), 1u);
  const plan::Profile profile = plan::parse_profile(read_file(files.front()));
  for (const char* part : {"tidal", "kascade", "retrieval", "kept", "speed"}) EXPECT_TRUE(profile.has(part)) << part;

  const Outcome second = run({"--attn", "kascade", "--calibrate"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(second.out, first.out);
  EXPECT_EQ(second.err.find(kFirst), std::string::npos) << second.err;
  const Outcome by_itself = run({"--attn", "auto"});
  EXPECT_EQ(by_itself.code, 0) << by_itself.err;
  EXPECT_NE(by_itself.err.find("--attn auto takes "), std::string::npos) << by_itself.err;
}

TEST_F(CalibrateFirst, AutoAndArmsMakeOneToo) {
  const Outcome by_itself = run({"--attn", "auto", "--calibrate"});
  EXPECT_EQ(by_itself.code, 0) << by_itself.err;
  EXPECT_NE(by_itself.err.find(kFirst), std::string::npos) << by_itself.err;
  EXPECT_EQ(files_in(data_).size(), 1u);
  fs::remove_all(data_);
  const Outcome bench = run_program({"bench", "decode", "-m", model("short"), "-t", "1", "-n", "16", "-r", "1",
                                     "--depth", "16", "--arms", "full,kascade", "--calibrate"},
                                    setting_);
  EXPECT_EQ(bench.code, 0) << bench.err;
  EXPECT_NE(bench.err.find(kFirst), std::string::npos) << bench.err;
  EXPECT_EQ(files_in(data_).size(), 1u);
}

TEST_F(CalibrateFirst, OnlyWhereAMethodWouldGuess) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--attn", "kascade"},
                                             {"--attn", "kascade", "--attn-opt", "anchors=0+2", "--calibrate"},
                                             {"--attn", "kascade", "--attn-profile", "none"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find(kFirst), std::string::npos) << outcome.err;
  }
  const Outcome idle = run({"--attn", "quest", "--calibrate"});
  EXPECT_EQ(idle.code, 2);
  EXPECT_NE(idle.err.find("policy 'quest' has no use for --calibrate; leave the flag out"), std::string::npos);
  EXPECT_TRUE(files_in(data_).empty());
}

TEST_F(CalibrateFirst, AModelThatCannotBeIsAnError) {
  const Outcome outcome = run({"--raw", "--attn", "kascade", "--calibrate"}, "no-template");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("error: the model has no chat template"), std::string::npos) << outcome.err;
  EXPECT_TRUE(files_in(data_).empty());
}

TEST_F(CalibrateFirst, CtrlCEndsItAndWritesNothing) {
  bool sent = false;
  setting_.on_error_bytes = [&](int pid, const std::string& err) {
    if (!sent && err.find(kFirst) != std::string::npos) sent = ::kill(pid, SIGINT) == 0;
  };
  const Outcome outcome = run({"--attn", "kascade", "--calibrate"}, "llama");
  ASSERT_TRUE(sent) << outcome.err;
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("interrupted; '"), std::string::npos) << outcome.err;
  EXPECT_TRUE(files_in(data_).empty());
}

TEST_F(CalibrateFirst, ATerminalNeedsNoFlagAndShowsHowFarItIs) {
  const std::vector<std::string> words{"run", "-m", model("short"), "-t",     "1", "-p", "who?",
                                       "-n",  "2",  "--attn",       "kascade"};
  const Shown shown = run_in_terminal(words, {.columns = 200, .data_home = data_.string()});
  ASSERT_EQ(shown.code, 0) << shown.bytes;
  EXPECT_NE(shown.bytes.find(kFirst), std::string::npos) << shown.bytes;
  EXPECT_NE(shown.bytes.find("calibrate "), std::string::npos) << shown.bytes;
  EXPECT_EQ(files_in(data_).size(), 1u);
}

TEST_F(CalibrateFirst, ATerminalGoesOnWithoutWhereItCannot) {
  const std::vector<std::string> words{
      "run", "-m", model("no-template"), "-t", "1", "--raw", "-p", "x", "-n", "2", "--attn", "kascade"};
  const Shown shown = run_in_terminal(words, {.columns = 200, .data_home = data_.string()});
  EXPECT_EQ(shown.code, 0) << shown.bytes;
  EXPECT_EQ(shown.bytes.find(kFirst), std::string::npos) << shown.bytes;
  EXPECT_NE(shown.bytes.find("no profile: "), std::string::npos) << shown.bytes;
}

}  // namespace
}  // namespace glimpse::cli
