// glimpse run --session: made, used, kept, refused; what is said of it in JSON and on standard error.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>
#include <utility>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

std::vector<std::string> words(const std::string& prompt, const std::filesystem::path& session,
                               const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = run_words({"-p", prompt, "-n", "12", "--session", session.string()});
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

TEST(Session, TheSecondRunPrefillsNothing) {
  const auto file = scratch("file");
  const auto plain = run_for_json(run_words({"-p", prose(20), "-n", "12"}));
  EXPECT_FALSE(plain.contains("session"));
  const auto made = run_for_json(words(prose(20), file));
  EXPECT_EQ(made["session"]["file_tokens"], 0);
  EXPECT_EQ(made["session"]["saved_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(made["session"]["saved_bytes"], std::filesystem::file_size(file));
  EXPECT_TRUE(made["session"]["save_error"].is_null());
  const auto used = run_for_json(words(prose(20), file));
  EXPECT_EQ(used["session"]["file_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(used["session"]["common_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(used["session"]["loaded_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(used["session"]["saved_tokens"], 0);
  EXPECT_EQ(used["prefill_s"], 0);
  EXPECT_EQ(made["reused_tokens"], 0);
  EXPECT_EQ(made["prefilled_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(used["reused_tokens"], plain["prompt_tokens"]);
  EXPECT_EQ(used["prefilled_tokens"], 0);
  const Outcome said = run_program(words(prose(20), file));
  const std::string all = plain["prompt_tokens"].dump();
  EXPECT_NE(said.err.find("prompt     " + all + " tokens, " + all + " of them from the session\n"), std::string::npos)
      << said.err;
  EXPECT_TRUE(used["session"]["why_less"].is_null());
  for (const auto& run : {made, used}) EXPECT_EQ(run["tokens"], plain["tokens"]);
}

TEST(Session, ALongerPromptTakesTheBeginningAndSaysSo) {
  const auto file = scratch("file");
  const std::string text = prose(20);
  run_for_json(words(text, file, {"--prefill-chunk", "32"}));
  const std::string longer = text + " " + prose(9);
  const auto plain = run_for_json(run_words({"-p", longer, "-n", "12", "--prefill-chunk", "32"}));
  const Outcome outcome = run_program(words(longer, file, {"--prefill-chunk", "32", "--attn", "quest"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.err.find("\nsession    "), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("whole prefill chunks"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find(" tokens saved"), std::string::npos) << outcome.err;
  const std::string session = "\nsession    ";
  const int length = plain["prompt_tokens"],
            first = std::stoi(outcome.err.substr(outcome.err.find(session) + session.size()));
  const std::string computed = "prompt     " + std::to_string(length) + " tokens, " + std::to_string(first) +
                               " of them from the session; " + std::to_string(length - first) + " computed in ";
  EXPECT_NE(outcome.err.find(computed), std::string::npos) << "no '" << computed << "' in " << outcome.err;
  const auto again = run_for_json(words(longer, file, {"--prefill-chunk", "32"}));  // by another method
  EXPECT_EQ(again["reused_tokens"].get<int>() + again["prefilled_tokens"].get<int>(), length);
  EXPECT_EQ(again["tokens"], plain["tokens"]);
  EXPECT_GT(again["session"]["loaded_tokens"].get<int>(), plain["prompt_tokens"].get<int>() - 33);
}

/// Waits until the program catches Ctrl-C, or no longer does. False when it has ended.
bool wait_for_handler(int pid, bool wanted) {
  constexpr unsigned long long kInterrupt = 1ULL << (SIGINT - 1);
  for (;;) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::string word;
    while (status >> word && word != "SigCgt:") {
      if (word == "State:" && status >> word && (word == "Z" || word == "X")) return false;
    }
    if (!(status >> word)) return false;
    if (((std::stoull(word, nullptr, 16) & kInterrupt) != 0) == wanted) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Many passes on one thread: ctest runs a test for each core already.
std::vector<std::string> on_one_thread(std::vector<std::string> words) {
  *(std::find(words.begin(), words.end(), "-t") + 1) = "1";
  return words;
}

/// Presses Ctrl-C in the prefill so many times. A context longer than the model's gives the warning that it waits for.
Outcome interrupted(std::vector<std::string> words, int times) {
  Setting setting;
  bool pressed = false;
  setting.on_error_bytes = [&](int pid, const std::string&) {
    if (std::exchange(pressed, true)) return;
    for (int i = 0; i < times && wait_for_handler(pid, i % 2 == 0); ++i) ::kill(pid, SIGINT);
  };
  const Outcome outcome = run_program(on_one_thread(std::move(words)), setting);
  EXPECT_TRUE(pressed);
  return outcome;
}

TEST(Session, CtrlCInThePrefillKeepsWhatIsDone) {
  const auto file = scratch("file");
  const std::vector<std::string> more{"-c", "5000", "--prefill-chunk", "64"};
  const Outcome stopped = interrupted(words(prose(200), file, more), 1);
  EXPECT_EQ(stopped.code, 130);
  const std::string start = "prompt     not complete: ";
  const std::size_t at = stopped.err.find(start);
  ASSERT_NE(at, std::string::npos) << stopped.err;
  const int done = std::stoi(stopped.err.substr(at + start.size()));
  EXPECT_GT(done, 0);
  EXPECT_EQ(done % 64, 0);
  EXPECT_NE(stopped.err.find("session    " + std::to_string(done) + " tokens saved"), std::string::npos) << stopped.err;
  EXPECT_NE(stopped.err.find("ended by interrupted"), std::string::npos) << stopped.err;
  const auto resumed = run_for_json(on_one_thread(words(prose(200), file, more)));
  EXPECT_NE(stopped.err.find(" of " + resumed["prompt_tokens"].dump() + " tokens"), std::string::npos) << stopped.err;
  EXPECT_EQ(resumed["reused_tokens"], done);
  auto plain = run_words({"-p", prose(200), "-n", "12"});
  plain.insert(plain.end(), more.begin(), more.end());
  EXPECT_EQ(resumed["tokens"], run_for_json(on_one_thread(plain))["tokens"]);
}

TEST(Session, ASecondCtrlCEndsAtOnce) {
  const auto file = scratch("file");
  const Outcome outcome = interrupted(words(prose(200), file, {"-c", "5000", "--prefill-chunk", "5000"}), 2);
  EXPECT_EQ(outcome.code, 128 + SIGINT);
  EXPECT_EQ(outcome.err.find("prompt  "), std::string::npos) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Session, WhatIsRefusedIsNamedAndKept) {
  const auto file = scratch("file");
  write_file(file, "not a session at all, but somebody's text");
  const Outcome outcome = run_program(words("the river", file));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find(file.string()), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("is not a saved session"), std::string::npos) << outcome.err;
  EXPECT_EQ(read_file(file), "not a session at all, but somebody's text");
  write_file(file, "");
  EXPECT_EQ(run_program(words("the river", file)).code, 2);
  EXPECT_EQ(read_file(file), "");
  const Outcome nowhere = run_program(words("the river", "/no-such-folder/x"));
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_NE(nowhere.err.find("folder does not exist"), std::string::npos) << nowhere.err;
}

}  // namespace
}  // namespace glimpse::cli
