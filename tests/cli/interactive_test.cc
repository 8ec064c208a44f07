// run -i through a pipe: one question a line, history without a second prefill, commands, bad lines that cost nothing.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

std::vector<nlohmann::json> objects(const std::string& lines) {
  std::vector<nlohmann::json> all;
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

Outcome talk(const std::string& input, std::vector<std::string> more, bool json = true) {
  more.insert(more.begin(), {"-i", "-n", "8"});
  if (json) more.push_back("--json");
  return run_program(run_words(more), {.input = input});
}

TEST(Interactive, AQuestionALineAndOneAnswerEach) {
  const Outcome outcome = talk("who goes there?\n\nand why?\r\n", {}, false);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2) << outcome.out;
  EXPECT_EQ(outcome.err, "");
}

TEST(Interactive, LaterQuestionsGoOnFromTheCache) {
  const auto document = scratch("document.txt");
  write_file(document, prose(20) + "\n");
  const Outcome outcome = talk("who goes there?\nand why?\nand where?\n",
                               {"-f", document.string(), "--attn", "tidal", "--attn-budget", "32"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto answers = objects(outcome.out);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[0]["reused_tokens"], 0);
  for (std::size_t i = 1; i < 3; ++i) {
    // All but the last token of the answer, which was never fed, is in the cache.
    const std::int64_t before = answers[i - 1]["prompt_tokens"].get<std::int64_t>() +
                                answers[i - 1]["generated_tokens"].get<std::int64_t>() - 1;
    EXPECT_GE(answers[i]["reused_tokens"].get<std::int64_t>(), before);
    EXPECT_GT(answers[i]["prompt_tokens"].get<std::int64_t>(), answers[i]["reused_tokens"].get<std::int64_t>());
  }
}

TEST(Interactive, TheFirstAnswerIsThatOfRun) {
  const auto alone = run_for_json(run_words({"-p", "who goes there?", "-n", "8"}));
  const auto answers = objects(talk("who goes there?\n", {}).out);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0]["tokens"], alone["tokens"]);
  const auto asked = objects(talk("", {"-p", "who goes there?"}).out);
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0]["tokens"], alone["tokens"]);
}

TEST(Interactive, TheMethodChangesBetweenQuestions) {
  const auto document = scratch("document.txt");
  write_file(document, prose(20) + "\n");
  const Outcome outcome =
      talk("one?\n/attn streaming 48\ntwo?\n/attn quest 64\nthree?\n/attn full\nfour?\n", {"-f", document.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto answers = objects(outcome.out);
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[1]["attention"]["policy"], "streaming");
  EXPECT_GT(answers[1]["reused_tokens"], 0);
  EXPECT_EQ(answers[2]["attention"]["policy"], "quest");
  EXPECT_EQ(answers[2]["reused_tokens"], 0);  // streaming forgot
  EXPECT_EQ(answers[3]["attention"]["policy"], "full");
  EXPECT_GT(answers[3]["reused_tokens"], 0);
}

TEST(Interactive, WhatIsRefusedCostsNothingButItself) {
  const Outcome outcome =
      talk("one?\n/frobnicate\n/attn tidl 32\n/attn\n" + prose(3000) + "\n\xff\ntwo?\n/stats\n", {"-c", "256"});
  EXPECT_EQ(outcome.code, 2);
  const auto answers = objects(outcome.out);
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_GT(answers[1]["reused_tokens"], 0);
  for (const char* part : {"unknown command '/frobnicate'", "did you mean 'tidal'?", "/attn needs a method",
                           "the context holds 256", "byte 0", "generated  8 tokens"}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
  }
}

TEST(Interactive, BlanksBehindACommandSayNothing) {
  const Outcome outcome = talk("hi\n/stats \n/help\t\n/attn \n/attn tidal  \nhi\n/quit \nhi\n", {}, false);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 2) << outcome.out;
  EXPECT_NE(outcome.err.find("/attn needs a method"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("internal"), std::string::npos) << outcome.err;
}

TEST(Interactive, StatsBeforeAnAnswerAndQuit) {
  const Outcome outcome = talk("/stats\n/quit\nnever asked\n", {});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
}

}  // namespace
}  // namespace glimpse::cli
