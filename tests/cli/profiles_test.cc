// The model's own profile in the user's data folder: found, named otherwise, turned off, missing, broken, another's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "glimpse/plan/profile.h"
#include "glimpse/policies/policy.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

namespace fs = std::filesystem;

const plan::ModelShape kShape{"llama", "test llama", 4, 6, 2, 32, 4096};

/// A profile of the test model that maps every head to the anchor's other one.
plan::Profile profile_of_model(int second_anchor = 2) {
  plan::Profile profile;
  profile.model = kShape;
  profile.model.context = 0;
  std::vector<int> map{0, 1, 1, 0, 1, 0, 1, 0};
  map[static_cast<std::size_t>(2 * second_anchor)] = 0;
  map[static_cast<std::size_t>(2 * second_anchor + 1)] = 1;
  profile.kascade = plan::KascadeProfile{{0, second_anchor}, map};
  return profile;
}

plan::Plan kascade_plan(const plan::Profile& profile) {
  policies::PolicyOptions options;
  options.profile = &profile;
  return policies::make_plan("kascade", kShape, options);
}

/// The model's fingerprint as its saved sessions have it.
std::string fingerprint() {
  static const std::string known = [] {
    const auto file = scratch("a.session");
    run_program(run_words({"-p", "the river", "-n", "1", "--session", file.string()}));
    const Outcome facts = run_program({"inspect", file.string(), "--json"});
    return nlohmann::json::parse(facts.out)["model"]["fingerprint"].get<std::string>();
  }();
  return known;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

const std::string kUsed = "the model's profile is used: '";

class Profiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = fingerprint() + ".json";
    data_ = scratch("data");
    folder_ = data_ / "glimpse" / "profiles";
    fs::create_directories(folder_);
    file_ = folder_ / name;
    setting_.environment = {"XDG_DATA_HOME=" + data_.string()};
  }
  void put(const plan::Profile& profile) const { write_file(file_, plan::to_json(profile)); }
  /// `glimpse plan --json` of kascade with more words.
  Outcome planned(const std::vector<std::string>& more = {}) const { return planned(more, setting_); }
  static Outcome planned(const std::vector<std::string>& more, const Setting& setting) {
    std::vector<std::string> words{"plan", "-m", model(), "--json", "--attn", "kascade"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words, setting);
  }

  fs::path data_, folder_, file_;
  Setting setting_;
};

TEST_F(Profiles, IsFoundByTheFingerprintAndSaidInOneLine) {
  put(profile_of_model());
  const Outcome outcome = planned();
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(plan::from_json(outcome.out), kascade_plan(profile_of_model()));
  EXPECT_EQ(outcome.err, kUsed + file_.string() + "'; --attn-profile none leaves it out\n");

  plan::Profile marked = profile_of_model();
  marked.fingerprint = std::stoull(fingerprint(), nullptr, 16);
  put(marked);
  EXPECT_EQ(planned().out, outcome.out) << "the fingerprint in the file is the model's";
}

TEST_F(Profiles, TheFolderIsTheUsersOrTheOneThatIsNamed) {
  put(profile_of_model());
  const auto finds = [&](const Setting& setting, const std::vector<std::string>& more = {}) {
    return planned(more, setting).err.find(kUsed) != std::string::npos;
  };
  const auto home = scratch("home");
  fs::create_directories(home / ".local/share/glimpse");
  fs::copy(folder_, home / ".local/share/glimpse/profiles", fs::copy_options::recursive);
  EXPECT_TRUE(finds({.environment = {"XDG_DATA_HOME=", "HOME=" + home.string()}}));
  EXPECT_TRUE(finds({.environment = {"XDG_DATA_HOME=not/absolute", "HOME=" + home.string()}}));
  EXPECT_FALSE(finds({.environment = {"XDG_DATA_HOME=", "HOME="}}));
  EXPECT_FALSE(finds({.environment = {"XDG_DATA_HOME=" + home.string(), "HOME=" + home.string()}}));
  EXPECT_TRUE(finds({}, {"--profile-dir", folder_.string()}));
  EXPECT_TRUE(finds({.environment = {"GLIMPSE_ARG_PROFILE_DIR=" + folder_.string()}}));
  EXPECT_FALSE(finds({}));
  // One that was typed wins over a profile of the environment.
  EXPECT_TRUE(finds({.environment = {"GLIMPSE_ARG_ATTN_PROFILE=none"}}, {"--profile-dir", folder_.string()}));
  const Outcome none = planned({"--profile-dir", (data_ / "missing").string()});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("missing': no such folder"), std::string::npos) << none.err;
}

TEST_F(Profiles, WithoutOneTheGuessIsWarnedOfAndNothingElse) {
  const Outcome missing = planned();
  EXPECT_EQ(missing.code, 0);
  EXPECT_EQ(count(missing.err, "\n"), 1u) << missing.err;
  EXPECT_NE(missing.err.find("warning: policy 'kascade': no profile: "), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find("'glimpse calibrate -m MODEL'"), std::string::npos) << missing.err;
  fs::remove_all(data_);
  EXPECT_EQ(planned().err, missing.err);
  EXPECT_FALSE(fs::exists(data_)) << "looking makes no folder";
}

TEST_F(Profiles, NoneTurnsItOffAndAFileIsTakenInstead) {
  const Outcome guessed = planned();
  put(profile_of_model());
  const Outcome off = planned({"--attn-profile", "none"});
  EXPECT_EQ(off.out, guessed.out);
  EXPECT_EQ(off.err, guessed.err);
  const auto other = scratch("other.json");
  write_file(other, plan::to_json(profile_of_model(1)));
  const Outcome taken = planned({"--attn-profile", other.string()});
  EXPECT_EQ(plan::from_json(taken.out), kascade_plan(profile_of_model(1)));
  EXPECT_EQ(taken.err, "");
}

TEST_F(Profiles, WhatIsWrongWithOneIsAWarningAndTheRunGoesOn) {
  const Outcome guessed = planned();
  const auto expect_left_out = [&](const std::string& why) {
    const Outcome outcome = planned();
    EXPECT_EQ(outcome.code, 0) << why;
    EXPECT_EQ(outcome.out, guessed.out) << why;
    ASSERT_EQ(count(outcome.err, "\n"), 2u) << outcome.err;
    const std::string line = outcome.err.substr(0, outcome.err.find('\n'));
    EXPECT_EQ(line.rfind("warning: ", 0), 0u) << line;
    for (const std::string& part : {file_.string(), why, std::string("'glimpse calibrate -m MODEL'")}) {
      EXPECT_NE(line.find(part), std::string::npos) << part << " in " << line;
    }
    EXPECT_EQ(outcome.err.substr(line.size() + 1), guessed.err) << "and the method warns as without";
  };
  write_file(file_, plan::to_json(profile_of_model()).substr(0, 100));
  expect_left_out("not valid JSON");
  write_file(file_, "");
  expect_left_out("not valid JSON");
  plan::Profile foreign = profile_of_model();
  foreign.fingerprint = 1;
  put(foreign);
  expect_left_out("made for the model file 0000000000000001, but this one is " + fingerprint());
  foreign = profile_of_model();
  foreign.model.model_name = "another";
  put(foreign);
  expect_left_out("made for llama 'another'");
  fs::remove(file_);
  fs::create_directory(file_);
  expect_left_out("not a regular file");
}

TEST_F(Profiles, OptionsThatSayAllGoBeforeOneThatNobodyNamed) {
  put(profile_of_model());
  const Outcome by_hand = planned({"--attn-opt", "anchors=0+1"});
  EXPECT_EQ(by_hand.code, 0);
  EXPECT_EQ(by_hand.err, "") << "neither used nor missed";
  const Outcome named = planned({"--attn-opt", "anchors=0+1", "--attn-profile", file_.string()});
  EXPECT_EQ(named.out, by_hand.out);
  EXPECT_NE(named.err.find("anchors are given, so the profile's"), std::string::npos) << named.err;
}

TEST_F(Profiles, AFileThatIsNamedMustBeTheModels) {
  const auto path = scratch("foreign.json");
  plan::Profile foreign = profile_of_model();
  foreign.fingerprint = 1;
  write_file(path, plan::to_json(foreign));
  const Outcome outcome = planned({"--attn-profile", path.string()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(count(outcome.err, "\n"), 1u) << outcome.err;
  EXPECT_NE(outcome.err.find("made for the model file 0000000000000001, but this one is " + fingerprint()),
            std::string::npos)
      << outcome.err;
}

TEST_F(Profiles, AMethodWithoutAUseForItLooksForNone) {
  write_file(file_, "broken");
  for (const char* policy : {"full", "quest", "streaming"}) {
    const Outcome outcome = run_program({"plan", "-m", model(), "--attn", policy}, setting_);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_EQ(outcome.err, "") << policy;
  }
  // One that has a use for other parts says that it guesses, and not that the profile is used.
  put(profile_of_model());
  const Outcome duo = run_program({"plan", "-m", model(), "--attn", "duo"}, setting_);
  EXPECT_EQ(duo.code, 0);
  EXPECT_EQ(duo.err.rfind("warning: policy 'duo': no profile: ", 0), 0u) << duo.err;
  EXPECT_EQ(count(duo.err, "\n"), 1u) << duo.err;
}

TEST_F(Profiles, EveryCommandThatRunsAMethodFindsIt) {
  put(profile_of_model());
  const auto text = scratch("text.txt");
  write_file(text, prose(20));
  const std::vector<std::string> decode{"bench", "decode", "-m", model(), "--arms",  "full,kascade:16,kascade:32",
                                        "-r",    "1",      "-n", "16",    "--depth", "64",
                                        "-t",    "2"};
  const std::vector<std::string> serve{"bench", "serve", "-m",         model(), "--arms",          "full,kascade:16",
                                       "-t",    "2",     "--requests", "2",     "--prompt-tokens", "40",
                                       "-n",    "2",     "--rate",     "inf"};
  for (const auto& words : std::vector<std::vector<std::string>>{
           run_words({"-p", "the river", "-n", "2", "--attn", "kascade"}),
           run_words({"-i", "-p", "the river", "-n", "2", "--attn", "kascade", "--json"}),
           {"eval", "sets", "-m", model(), "-f", text.string(), "--steps", "4", "--attn", "kascade", "--json"},
           {"eval", "perplexity", "-m", model(), "-f", text.string(), "-c", "64", "--attn", "kascade", "--json"},
           {"eval", "logits", "-m", model(), "-f", text.string(), "--tokens", "16", "--attn", "kascade", "-o",
            scratch("logits.npy").string()},
           decode,
           serve}) {
    const Outcome outcome = run_program(words, setting_);
    EXPECT_EQ(outcome.code, 0) << words[0] << " " << words[1] << outcome.err;
    EXPECT_EQ(count(outcome.err, kUsed + file_.string()), 1u) << words[0] << " " << words[1] << outcome.err;
    EXPECT_EQ(outcome.err.find("no profile"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.out.find("profile"), std::string::npos) << outcome.out;
  }
  const Outcome quiet = run_program(run_words({"-p", "the river", "-n", "2", "--attn", "kascade", "-q"}), setting_);
  EXPECT_EQ(quiet.err, "");
}

TEST_F(Profiles, WhatRunsIsTheProfilesPlanAndASessionOfItGoesOn) {
  const auto plan = scratch("plan.json"), session = scratch("b.session");
  const plan::Profile profile = profile_of_model(1);
  write_file(plan, plan::to_json(kascade_plan(profile)));
  const auto run = [&](const std::vector<std::string>& more, const Setting& setting) {
    std::vector<std::string> words{"-p", prose(60), "-n", "24"};
    words.insert(words.end(), more.begin(), more.end());
    return run_for_json(run_words(words), setting);
  };
  const auto by_plan = run({"--attn-plan", plan.string()}, {});
  const auto guessed = run({"--attn", "kascade"}, setting_);
  put(profile);
  const auto found = run({"--attn", "kascade"}, setting_);
  EXPECT_EQ(found["tokens"], by_plan["tokens"]);
  EXPECT_NE(found["tokens"], guessed["tokens"]) << "the two plans can be told apart here";
  run({"--attn", "kascade", "--session", session.string()}, setting_);
  const auto again = run({"--attn", "kascade", "--session", session.string()}, setting_);
  EXPECT_EQ(again["prefilled_tokens"], 0) << "the same plan";
  EXPECT_EQ(again["tokens"], by_plan["tokens"]);
}

TEST_F(Profiles, ADialogueFindsItForTheNextMethodToo) {
  put(profile_of_model());
  setting_.input = "/attn kascade 32\nwho goes there?\n/attn full\n/attn kascade 16\n/attn duo 16\n";
  const Outcome outcome = run_program(run_words({"-i", "-n", "2"}), setting_);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count(outcome.err, kUsed), 1u) << outcome.err;
  EXPECT_EQ(count(outcome.err, "no profile"), 1u) << "duo's: " << outcome.err;
  const auto other = scratch("other.json");
  write_file(other, plan::to_json(profile_of_model(1)));
  for (const std::string& file : {other.string(), std::string("none")}) {
    const Outcome named = run_program(run_words({"-i", "-n", "2", "--attn-profile", file}), setting_);
    EXPECT_EQ(named.code, 0) << named.err;
    EXPECT_EQ(count(named.err, kUsed), 0u) << named.err;
    EXPECT_EQ(count(named.err, "no profile"), file == "none" ? 3u : 1u) << named.err;
  }
}

TEST_F(Profiles, FlagsWithoutEffectAreRefused) {
  put(profile_of_model());
  const std::string folder = folder_.string();
  const std::vector<std::string> plan{"plan", "-m", model(), "--attn"};
  const std::vector<std::string> bench{"bench", "decode", "-m", model(), "-n", "16", "--depth", "64", "--arms"};
  const std::string kPlanFile = "--profile-dir and --attn-plan";
  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& more,
                           const std::string& part) {
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_program(words, setting_);
    EXPECT_EQ(outcome.code, 2) << part;
    EXPECT_EQ(count(outcome.err, "\n"), 1u) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(part == kPlanFile ? "give one of the two" : "leave"), std::string::npos) << outcome.err;
  };
  refused(plan, {"full", "--profile-dir", folder}, "policy 'full' has no use for --profile-dir");
  refused(plan, {"full", "--attn-profile", "none"}, "policy 'full' has no use for --attn-profile");
  refused(plan, {"kascade", "--profile-dir", folder, "--attn-profile", "none"}, "--profile-dir has no effect beside");
  refused({"plan", "-m", model(), "--attn-plan", "x"}, {"--profile-dir", folder}, kPlanFile);
  refused(bench, {"full,quest", "--profile-dir", folder}, "policies 'full', 'quest' have no use for --profile-dir");
  refused(bench, {"full", "--attn-profile", "none"}, "policy 'full' has no use for --attn-profile");
  const Setting idle{.environment = {"GLIMPSE_ARG_PROFILE_DIR=" + folder, "GLIMPSE_ARG_ATTN_PROFILE=none"}};
  EXPECT_EQ(run_program({"plan", "-m", model(), "--attn", "full"}, idle).code, 0);
}

}  // namespace
}  // namespace glimpse::cli
