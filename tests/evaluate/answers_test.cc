// What answers add up to, by hand; the bootstrap against exact enumeration and a normal's interval; and arms that
// answer as sequences of their own do.
#include "glimpse/evaluate/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/examiner.h"
#include "glimpse/evaluate/logit_statistics.h"
#include "glimpse/evaluate/tasks/prose.h"
#include "tests/engine/support.h"
#include "tests/support/refusal.h"

namespace glimpse::evaluate {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

TEST(Bootstrap, IsThatOfExactDraws) {
  using Groups = std::vector<std::vector<double>>;
  // Of {0, 1} the mean is 0, a half or 1 with 1/4, 1/2, 1/4.
  const Interval coin = bootstrap(Groups{{0, 1}});
  EXPECT_EQ(coin.low, 0);
  EXPECT_EQ(coin.high, 1);
  const Interval sure = bootstrap(Groups{{0.5, 0.5, 0.5}});
  EXPECT_EQ(sure.low, 0.5);
  EXPECT_EQ(sure.high, 0.5);
  EXPECT_EQ(bootstrap(Groups{{}, {}}).high, 0);
  std::vector<double> half(400, 0);
  for (std::size_t i = 0; i < half.size(); i += 2) half[i] = 1;
  const double error = 1.96 * std::sqrt(0.25 / 400);
  EXPECT_NEAR(bootstrap(Groups{half}).low, 0.5 - error, 0.01);
  EXPECT_NEAR(bootstrap(Groups{half}).high, 0.5 + error, 0.01);
  // A group of one value adds half of the mean and no doubt.
  EXPECT_NEAR(bootstrap(Groups{half, {1}, {}}).low, 0.75 - error / 2, 0.01);
}

TEST(Answers, AddUpByCellAndOverTasks) {
  Answers answers;
  // {score, dense, agreement, divergence, bytes, dense bytes, steps, seconds, cache bytes}
  answers.add({"needle", 4096, 0, 0, "b"}, {1, 1, 0.5, 0.25, 10, 100, 2, 3.0, 50, "x"});
  answers.add({"needle", 4096, 0, 1, "b"}, {0, 1, 1, 0.75, 30, 100, 2, 5.0, 70, "x"});
  answers.add({"needle", 4096, 50, 0, "b"}, {1, 1, 1, 0, 20, 100, 1, std::nullopt, 60, "x"});
  answers.add({"vt", 4096, std::nullopt, 0, "b"}, {0.2, 0.4, 0, 2, 40, 100, 5, 1.0, 20, "x"});
  answers.add({"vt", 8192, std::nullopt, 0, "a"}, {0.6, 0.6, 1, 0, 100, 100, 1, 1.0, 20, "x"});
  answers.add({"vt", 8192, std::nullopt, 0, "other"}, {0.6, 0.6, 1, 0, 100, 100, 1, 1.0, 20, "x"});
  EXPECT_TRUE(answers.has({"vt", 8192, std::nullopt, 0, "a"}));
  EXPECT_FALSE(answers.has({"vt", 8192, 0, 0, "a"}));

  const std::vector<Cell> cells = answers.cells({"needle", "vt"}, {"a", "b"});
  ASSERT_THAT(cells, SizeIs(4));
  const Cell& first = cells[0];
  EXPECT_EQ(first.task, "needle");
  EXPECT_EQ(first.depth, 0);
  EXPECT_EQ(first.asked, 2);
  EXPECT_EQ(first.right, 1);
  EXPECT_EQ(first.score, 0.5);
  EXPECT_EQ(first.agreement, 0.75);
  EXPECT_EQ(first.divergence, 0.5);
  EXPECT_EQ(first.kept_ratio, 0.2);
  EXPECT_EQ(first.bytes_per_token, 10);
  EXPECT_EQ(first.cache_bytes, 60);
  EXPECT_EQ(first.step_s, 4.0);
  EXPECT_EQ(cells[1].depth, 50);
  EXPECT_FALSE(cells[1].step_s);
  EXPECT_EQ(cells[2].task, "vt");
  EXPECT_EQ(cells[3].length, 8192);
  EXPECT_EQ(cells[3].arm, "a");

  const std::vector<Cell> overall = answers.overall({"vt", "needle"}, {"b"});
  ASSERT_THAT(overall, SizeIs(1));
  EXPECT_EQ(overall[0].arm, "b");
  EXPECT_EQ(overall[0].asked, 4);
  EXPECT_DOUBLE_EQ(overall[0].score, (2.0 / 3 + 0.2) / 2) << "each task weighs the same, depths together";
  EXPECT_DOUBLE_EQ(overall[0].dense, (1 + 0.4) / 2);
  EXPECT_DOUBLE_EQ(overall[0].kept_ratio, 0.25);
  EXPECT_EQ(overall[0].step_s, 3.0);

  // Of two arms only what both answered: as if the run had been interrupted.
  EXPECT_TRUE(answers.overall({"vt", "needle"}, {"b", "a"}).empty());
  answers.add({"needle", 4096, 50, 0, "a"}, {0.5, 1, 1, 0, 10, 100, 1, 2.0, 60, "x"});
  const std::vector<Cell> both = answers.overall({"vt", "needle"}, {"b", "a"});
  ASSERT_THAT(both, SizeIs(2));
  EXPECT_EQ(both[0].asked, 1);
  EXPECT_EQ(both[0].score, 1);
  EXPECT_EQ(both[1].arm, "a");
  EXPECT_EQ(both[1].score, 0.5);
}

class Exams : public testing::Test {
 protected:
  static engine::EngineOptions options() {
    engine::EngineOptions options = engine::options_for(reference::test_model("llama"));
    options.sequences = kExamSequences;
    return options;
  }
  /// The answer of the plan in a sequence of its own, greedily.
  std::string own_answer(const plan::Plan& plan, const std::vector<text::Token>& prompt, std::size_t tokens) {
    engine::Sequence sequence = engine_.open(plan);
    text::Token next = arg_max(sequence.prefill(prompt));
    std::string text;
    for (std::size_t i = 0; i < tokens && !engine_.tokenizer().ends_generation(next); ++i) {
      text += engine_.tokenizer().piece(next);
      next = arg_max(sequence.decode(next));
    }
    return text;
  }

  engine::Engine engine_{options()};
  PromptMaker prompts_{engine_.tokenizer(), generated_prose(400, 3)};
  Examiner examiner_{engine_, prompts_, 5};
};

TEST_F(Exams, ArmsAnswerAsTheirOwnSequencesDo) {
  std::vector<PlannedArm> arms{{"full", engine::make(engine_, "full")},
                               {"tidal:32", engine::make(engine_, "tidal", engine::budget("32"))},
                               {"kascade:32", engine::make(engine_, "kascade", engine::budget("32"))},
                               {"streaming:64", engine::make(engine_, "streaming", engine::budget("64"))}};
  const AnswerKey key{"needle", 1024, 50, 0, ""};
  std::int64_t last = 0;
  const Progress::Callback count = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    return true;
  };
  Progress progress(count, work_of({key, arms}));
  std::map<std::string, Answer> answers;
  examiner_.ask({key, arms}, progress, [&](const AnswerKey& asked, const Answer& answer) {
    EXPECT_EQ(asked.task, "needle");
    answers[asked.arm] = answer;
  });
  ASSERT_THAT(answers, SizeIs(4));
  EXPECT_EQ(progress.done(), progress.total());
  const RetrievalPrompt prompt = examiner_.prompt_of(key);
  EXPECT_LE(std::ssize(prompt.tokens), 1024 - kAnswerTokens);
  for (const PlannedArm& arm : arms) {
    const Answer& answer = answers.at(arm.name);
    // An answer ends a little behind what is right, which a random model never is.
    const std::string own = own_answer(arm.plan, prompt.tokens, 400);
    EXPECT_FALSE(answer.text.empty());
    EXPECT_TRUE(own.starts_with(answer.text)) << arm.name << ": '" << answer.text << "' '" << own << "'";
    EXPECT_EQ(answer.score, 0);
  }
  const Answer& full = answers.at("full");
  EXPECT_EQ(full.agreement, 1);
  EXPECT_NEAR(full.divergence, 0, 1e-6);
  EXPECT_EQ(full.bytes_read, full.dense_bytes);
  const plan::ModelShape shape = engine_.shape();
  EXPECT_EQ(full.cache_bytes, (std::ssize(prompt.tokens) + full.steps) * shape.layers * shape.kv_heads *
                                  static_cast<std::int64_t>(engine_.row_pair_bytes()));
  EXPECT_LT(answers.at("streaming:64").cache_bytes, full.cache_bytes / 4);
  EXPECT_LT(answers.at("tidal:32").bytes_read, full.bytes_read);
  EXPECT_GT(answers.at("tidal:32").divergence, 0);
}

TEST_F(Exams, PromptsAreTheSameAtAllDepthsButForThePlace) {
  const RetrievalPrompt begin = examiner_.prompt_of({"needle", 2048, 0, 3, ""});
  const RetrievalPrompt end = examiner_.prompt_of({"needle", 2048, 100, 3, "tidal"});
  EXPECT_EQ(begin.wanted, end.wanted);
  EXPECT_NE(begin.content, end.content);
  EXPECT_EQ(begin.tokens, examiner_.prompt_of({"needle", 2048, 0, 3, ""}).tokens);
  EXPECT_NE(begin.wanted, examiner_.prompt_of({"needle", 2048, 0, 4, ""}).wanted);
  EXPECT_THAT(refusal([] { task_of("neddle"); }), HasSubstr("did you mean 'needle'"));
}

TEST_F(Exams, StopWhenToldTo) {
  const std::vector<PlannedArm> arms{{"full", engine::make(engine_, "full")}};
  int calls = 0;
  const Progress::Callback stop = [&](std::int64_t, std::int64_t) { return ++calls < 3; };
  Progress progress(stop, 100000);
  EXPECT_THROW(examiner_.ask({{"needle", 1024, 50, 0, ""}, arms}, progress, [](const auto&, const auto&) {}), Stopped);
}

}  // namespace
}  // namespace glimpse::evaluate
