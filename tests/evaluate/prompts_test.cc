// Generated prompts hold what they ask for, are functions of their seed, and need no file.
#include "glimpse/evaluate/tasks/prompts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/tasks/prose.h"
#include "tests/engine/support.h"
#include "tests/support/refusal.h"

namespace glimpse::evaluate {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

TEST(RetrievalPrompts, AnswersAreHeldAsWholeWords) {
  EXPECT_EQ(share_found("It is 1234567.", {"1234567"}), 1);
  EXPECT_EQ(share_found("It is 12345678.", {"1234567"}), 0);
  EXPECT_EQ(share_found("ABCDE and FGHIJ", {"ABCDE", "FGHIJ", "KLMNO", "PQRST"}), 0.5);
  EXPECT_EQ(share_found("Alpha\nbravo,  charlie", {"alpha bravo charlie"}), 1);
  EXPECT_EQ(share_found("", {"x"}), 0);
}

TEST(RetrievalPrompts, HoldWhatTheyAskForInsideTheirLength) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  std::string filler;
  for (int i = 0; i < 400; ++i) filler += "The tide came in and the boats went out again. Nobody spoke!\n\nIt rained. ";
  const PromptMaker maker(engine.tokenizer(), filler);
  for (const Task task : {Task::single, Task::multikey, Task::vt, Task::passkey}) {
    SCOPED_TRACE(name(task));
    EXPECT_EQ(parse_task(name(task)), task);
    const RetrievalPrompt prompt = maker.make(task, 8000, 7);
    EXPECT_LE(prompt.tokens.size(), 8000U);
    EXPECT_GE(prompt.tokens.size(), 7800U);
    EXPECT_EQ(prompt.tokens, maker.make(task, 8000, 7).tokens);
    EXPECT_NE(prompt.content, maker.make(task, 8000, 8).content);
    EXPECT_THAT(prompt.wanted, SizeIs(task == Task::vt ? 5 : 1));
    EXPECT_EQ(share_found(prompt.content, prompt.wanted), 1);
    EXPECT_EQ(prompt.content.find("again.One"), std::string::npos);
  }
  const std::string chain = maker.make(Task::vt, 8000, 9).content;
  const std::vector<std::string> names = maker.make(Task::vt, 8000, 9).wanted;
  for (std::size_t i = 1; i < names.size(); ++i) {
    EXPECT_THAT(chain, HasSubstr("\nVAR " + names[i] + " = VAR " + names[i - 1] + "\n"));
  }
  EXPECT_THAT(refusal([&] { maker.make(Task::passkey, 300, 1); }), HasSubstr("passkey"));
  EXPECT_THAT(refusal([&] { PromptMaker(engine.tokenizer(), "Too short. "); }), HasSubstr("sentences"));
  EXPECT_THAT(refusal([] { parse_task("singel"); }), HasSubstr("did you mean 'single'"));
}

TEST(RetrievalPrompts, QuestionsShareTheirHaystack) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  const PromptMaker maker(engine.tokenizer(), generated_prose(400, 3));
  const std::vector<RetrievalPrompt> prompts = maker.make_all({Task::multikey, 3000, 5}, 9);
  ASSERT_THAT(prompts, SizeIs(4));
  EXPECT_EQ(prompts.front().tokens, maker.make(Task::multikey, 3000, 5).tokens);
  const auto haystack = [](const RetrievalPrompt& prompt) {
    return prompt.content.substr(0, prompt.content.rfind("\n\n"));
  };
  for (const RetrievalPrompt& prompt : prompts) {
    EXPECT_EQ(haystack(prompt), haystack(prompts.front()));
    EXPECT_EQ(share_found(haystack(prompt), prompt.wanted), 1);
    EXPECT_EQ(std::count_if(prompts.begin(), prompts.end(),
                            [&](const RetrievalPrompt& other) { return other.wanted == prompt.wanted; }),
              1);
  }
}

TEST(RetrievalPrompts, ChainsOfVariablesHaveAQuestionEach) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  const PromptMaker maker(engine.tokenizer(), generated_prose(400, 3));
  PromptRequest request{Task::vt, 3000, 5};
  EXPECT_THAT(maker.make_all(request, 9), SizeIs(1));
  request.hidden = 3;
  const std::vector<RetrievalPrompt> prompts = maker.make_all(request, 9);
  ASSERT_THAT(prompts, SizeIs(3));
  std::set<std::string> variables;
  for (const RetrievalPrompt& prompt : prompts) {
    ASSERT_THAT(prompt.wanted, SizeIs(5));
    // The chain that the haystack tells: from the value that is asked for, who is assigned whom.
    const std::size_t asked = prompt.content.rfind("value ") + 6;
    std::string last = prompt.content.substr(asked, 5);
    for (std::size_t i = 0; i < prompt.wanted.size(); ++i) {
      EXPECT_NE(prompt.content.find("VAR " + prompt.wanted[i] + " = " + (i == 0 ? "" : "VAR ") + last),
                std::string::npos);
      last = prompt.wanted[i];
      EXPECT_TRUE(variables.insert(last).second) << last;
    }
  }
}

TEST(RetrievalPrompts, AMixedHaystackHidesWhatAllTasksAskFor) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  const PromptMaker maker(engine.tokenizer(), generated_prose(400, 3));
  const std::array tasks{MixedTask{Task::multikey, 6, 5}, MixedTask{Task::vt, 4, 9}, MixedTask{Task::passkey, 0, 3}};
  const auto prompts = maker.make_mixed(tasks, 9000, 5);
  ASSERT_THAT(prompts, SizeIs(3));
  EXPECT_THAT(prompts[0], SizeIs(5));
  EXPECT_THAT(prompts[1], SizeIs(4));
  EXPECT_THAT(prompts[2], SizeIs(3));
  const auto haystack = [](const RetrievalPrompt& prompt) {
    return prompt.content.substr(0, prompt.content.rfind("\n\n"));
  };
  const std::string text = haystack(prompts[0].front());
  std::set<std::string> questions;
  for (std::size_t kind = 0; kind < tasks.size(); ++kind) {
    const Metric alone = maker.make(tasks[kind].task, 9000, 5).metric;
    for (const RetrievalPrompt& prompt : prompts[kind]) {
      EXPECT_EQ(haystack(prompt), text);
      EXPECT_EQ(prompt.metric, alone);
      EXPECT_EQ(share_found(text, prompt.wanted), 1);
      EXPECT_LE(prompt.tokens.size(), 9000U);
      EXPECT_TRUE(questions.insert(prompt.content.substr(text.size())).second);
    }
  }
  EXPECT_EQ(prompts[1].front().tokens, maker.make_mixed(tasks, 9000, 5)[1].front().tokens);
  EXPECT_NE(text, haystack(maker.make_mixed(tasks, 9000, 6)[0].front()));
  // Kinds lie among each other: a number is hidden behind a variable, and a variable behind a number.
  EXPECT_LT(text.find("VAR "), text.rfind("One of the special magic numbers"));
  EXPECT_LT(text.find("One of the special magic numbers"), text.rfind("VAR "));
  // A chain's variables stand in their order.
  for (const RetrievalPrompt& prompt : prompts[1]) {
    for (std::size_t i = 1; i < prompt.wanted.size(); ++i) {
      EXPECT_LT(text.find("VAR " + prompt.wanted[i - 1] + " ="), text.find("VAR " + prompt.wanted[i] + " ="));
    }
  }
  EXPECT_THAT(refusal([&] { maker.make_mixed(tasks, 1000, 1); }), HasSubstr("leaves"));
}

/// What a quiet task hides is asked for as ever; only the words before the text are missing.
TEST(RetrievalPrompts, AQuietTaskSaysNothingBeforeTheText) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  const PromptMaker maker(engine.tokenizer(), generated_prose(400, 3));
  constexpr const char* kSaid = "Only give me the answer";
  for (const bool quiet : {false, true}) {
    const std::vector tasks{MixedTask{Task::multikey, 4, 9}, MixedTask{Task::qa, 3, 9, quiet}};
    const auto prompts = maker.make_mixed(tasks, 4000, 5);
    EXPECT_THAT(prompts[0], SizeIs(4));
    ASSERT_THAT(prompts[1], SizeIs(6)) << "two of each person";
    std::set<std::string> wanted;
    for (const RetrievalPrompt& prompt : prompts[1]) {
      const std::size_t question = prompt.content.rfind(kSaid);
      ASSERT_NE(question, std::string::npos) << "the question says so itself";
      EXPECT_EQ(prompt.content.find(kSaid) == question, quiet);
      EXPECT_NE(prompt.content.find(prompt.wanted.front()), std::string::npos);
      wanted.insert(prompt.wanted.front());
    }
    EXPECT_THAT(wanted, SizeIs(6));
  }
}

TEST(Prose, IsPlainAndHasItsSeed) {
  const std::string prose = generated_prose(200, 1);
  EXPECT_EQ(prose, generated_prose(200, 1));
  EXPECT_NE(prose, generated_prose(200, 2));
  EXPECT_EQ(std::count(prose.begin(), prose.end(), '.'), 200);
  EXPECT_TRUE(std::none_of(prose.begin(), prose.end(), [](unsigned char c) { return std::isdigit(c) != 0; }));
}

}  // namespace
}  // namespace glimpse::evaluate
