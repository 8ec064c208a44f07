// glimpse run --session: made, used, kept, refused; what is said of it in JSON and on standard error.
#include <gtest/gtest.h>

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
  const auto again = run_for_json(words(longer, file, {"--prefill-chunk", "32"}));  // by another method
  EXPECT_EQ(again["tokens"], plain["tokens"]);
  EXPECT_GT(again["session"]["loaded_tokens"].get<int>(), plain["prompt_tokens"].get<int>() - 33);
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
