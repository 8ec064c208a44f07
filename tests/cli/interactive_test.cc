// run -i through a pipe: one question a line, history without a second prefill, commands, bad lines that cost nothing.
#include <fmt/format.h>
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
  EXPECT_EQ(answers[3]["attention"]["policy"], "full");
  EXPECT_GT(answers[3]["reused_tokens"], 0);
}

TEST(Interactive, ThePrefillOutlivesAMethodThatForgets) {
  const auto document = scratch("document.txt");
  write_file(document, prose(30) + "\n");
  const std::vector<std::string> more{"-f", document.string(), "--prefill-chunk", "16", "-q"};
  for (const char* method : {"streaming 48", "tova 48"}) {
    const Outcome outcome =
        talk(fmt::format("one?\n/attn {0}\ntwo?\nand two?\n/attn full\nthree?\n/attn {0}\nfour?\n", method), more);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto answers = objects(outcome.out);
    ASSERT_EQ(answers.size(), 5u);
    const auto reused = [&](std::size_t i) { return answers[i]["reused_tokens"].get<std::int64_t>(); };
    const auto prompt = [&](std::size_t i) { return answers[i]["prompt_tokens"].get<std::int64_t>(); };
    EXPECT_GE(reused(2), prompt(1)) << "the second question goes on from the method's own sequence";
    // Back: all of the first question and its answer, whose last token never ran.
    EXPECT_GE(reused(3), prompt(0) + 7) << method;
    EXPECT_GE(reused(4), prompt(0) - 16) << "and there again from the whole one: " << method;
  }
}

TEST(Interactive, AnswersAfterAMethodThatForgetsAreThoseOfAFreshDialogue) {
  const auto document = scratch("document.txt");
  write_file(document, prose(30) + "\n");
  const std::vector<std::string> more{"-f", document.string(), "--prefill-chunk", "16", "-q"};
  // Without an answer between them the tokens of both dialogues are the same.
  const auto back = objects(talk("/attn full\none?\n/attn streaming 48\n/clear\n/attn full\n/clear\none?\n", more).out);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1]["tokens"], back[0]["tokens"]);
  // A forgetting method on a fork of a dense prefill answers as it does alone.
  const auto forked = objects(talk("one?\n/clear\n/attn streaming 48\none?\n", more).out);
  const auto alone = objects(talk("/attn streaming 48\none?\n", more).out);
  ASSERT_EQ(forked.size(), 2u);
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_GT(forked[1]["reused_tokens"], 0);
  EXPECT_EQ(forked[1]["tokens"], alone[0]["tokens"]);
}

TEST(Interactive, ClearKeepsTheDocumentAndItsPrefill) {
  const auto document = scratch("document.txt");
  write_file(document, prose(30) + "\n");
  const Outcome outcome = talk("one?\ntwo?\n/clear\none?\n", {"-f", document.string(), "--prefill-chunk", "16"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto answers = objects(outcome.out);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers[2]["prompt_tokens"], answers[0]["prompt_tokens"]);
  EXPECT_EQ(answers[2]["tokens"], answers[0]["tokens"]);
  EXPECT_GE(answers[2]["reused_tokens"].get<int>(), answers[0]["prompt_tokens"].get<int>() - 16);
}

TEST(Interactive, AnArmIsThatOfBench) {
  const auto answers = objects(
      talk("/attn tidal:24,set=layer,sink=2\none?\n/attn tidal 24 set=layer sink=2\n/clear\none?\n", {"-p", prose(9)})
          .out);
  ASSERT_EQ(answers.size(), 3u);
  const auto flags = run_for_json(run_words({"-n", "8", "-p", "one?", "--attn", "tidal", "--attn-budget", "24",
                                             "--attn-opt", "set=layer", "--attn-sink", "2"}));
  EXPECT_EQ(answers[2]["tokens"], flags["tokens"]);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(answers[i]["attention"]["policy"], "tidal");
    EXPECT_EQ(answers[i]["attention"]["budget"], "24");
    EXPECT_EQ(answers[i]["attention"]["set_per"], "layer");
  }
}

TEST(Interactive, CommandsSayWhatIsKept) {
  const auto document = scratch("document.txt");
  write_file(document, prose(20) + "\n");
  const Outcome outcome = talk("/help\none?\n/attn streaming 48\ntwo?\n/stats\n/clear\n", {"-f", document.string()});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part :
       {"/clear ", "0 questions and 0 answers, the document before the next question; nothing in the KV cache",
        "method  streaming, budget 48", "1 question and 1 answer, the document; ", "in the KV cache, for every method",
        "less what 'streaming' has forgotten, for this method alone"}) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " in " << outcome.err;
  }
  EXPECT_EQ(talk("/attn quest\n/clear\n", {"-q"}).err, "");
  const Outcome unknown = talk("/frobnicate\n", {});
  EXPECT_NE(unknown.err.find("/attn, /clear, /stats, /help and /quit"), std::string::npos) << unknown.err;
  EXPECT_EQ(std::count(unknown.err.begin(), unknown.err.end(), '\n'), 1) << unknown.err;
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
