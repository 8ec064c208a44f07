// The table on a small random model, of which is wanted what dense attention says: who is asked how much by given
// times, and that a race which was interrupted anywhere ends as it would have.
#include "glimpse/calibrate/rows.h"

#include <gtest/gtest.h>

#include <charconv>
#include <set>
#include <sstream>

#include "glimpse/calibrate/choose.h"
#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

constexpr std::int64_t kLength = 300;
constexpr int kOfEach = 12;  // questions of both kinds
constexpr int kSteps = 10;   // that a plan is timed with, at each of two lengths

class Rows : public testing::Test {
 protected:
  Rows()
      : engine_([] {
          engine::EngineOptions options = engine::options_for(reference::test_model("llama"));
          options.sequences = study_sequences(options.context);
          return options;
        }()),
        study_{kLength, 37, {}, {}, {engine_.shape(), 8}, {engine_.shape(), 8}, {}} {
    engine::Sequence dense = engine_.open(plan::dense_plan(engine_.shape()));
    const std::vector<Token> text =
        engine::random_tokens(static_cast<std::size_t>(kLength), engine_.tokenizer().size());
    dense.prefill(text);
    for (const char* task : {"multikey", "vt"}) {
      for (int i = 0; i < kOfEach; ++i) {
        RetrievalPrompt prompt{text, "", {"1234567"}};
        for (int j = 0; j < 4; ++j)
          prompt.tokens.push_back(static_cast<Token>(20 + 7 * i + j + (task[0] == 'v' ? 3 : 0)));
        // What dense attention says is what is wanted.
        prompt.metric = evaluate::Metric::any;
        Trial trial = make_trial(engine_, dense, prompt, {.limit = 10});
        std::string said;
        for (const Token token : trial.answer) said += engine_.tokenizer().piece(token);
        trial.wanted = prompt.wanted = {said};
        trial.right = true;
        if (i >= kCompared) trial = make_trial(engine_, dense, prompt, {.limit = 0});
        trial.task = task;
        study_.trials.push_back(std::move(trial));
      }
    }
    study_.trials.push_back(prose_trial(engine_, dense, kLength * 3 / 4, 8));
    // `keeps` and `slow` read everything, and so give dense attention's answers; `loses` reads little.
    const auto plan = [&](const char* tokens) { return engine::make(engine_, "tidal", engine::budget(tokens)); };
    plans_ = {{{"keeps", "64", "", {}}, plan("4000")},
              {{"loses", "64", "", {}}, plan("16")},
              {{"slow", "64", "", {}}, plan("3999")},
              {{"far", "10%", "", {}}, plan("3998")}};
  }

  plan::Profile measure(Measured* measured) {
    study_.measured = measured;
    plan::Profile profile = plan::empty_profile(engine_.shape());
    const Progress::Callback on = [](std::int64_t, std::int64_t) { return true; };
    Progress progress(on, 1000);
    measure_rows(engine_, study_, plans_, profile, progress);
    return profile;
  }

  /// What a calibration has measured that has just timed the plans: milliseconds of dense attention and of each.
  Measured timed(const std::vector<double>& ms) {
    Measured all(1);
    measure(&all);
    std::istringstream lines(all.text());
    const std::size_t count = 2 * ms.size() * kSteps;
    for (std::string line; std::getline(lines, line);) {
      const auto blanks = static_cast<std::size_t>(std::count(line.begin(), line.end(), ' '));
      if (blanks != count) continue;
      std::uint64_t key = 0;
      std::from_chars(line.data(), line.data() + 16, key, 16);
      std::vector<double> steps;
      for (int length = 0; length < 2; ++length) {
        for (const double each : ms) steps.insert(steps.end(), kSteps, each / 1000);
      }
      Measured times(1);
      times.add(key, steps);
      return times;
    }
    throw std::logic_error("no times among what was measured");
  }

  static std::vector<plan::Kept> rows_of(const plan::Profile& profile, std::string_view method) {
    std::vector<plan::Kept> rows;
    for (const plan::Kept& row : profile.kept) {
      if (row.method == method) rows.push_back(row);
    }
    return rows;
  }

  engine::Engine engine_;
  Study study_;
  std::vector<TimedPlan> plans_;
};

TEST_F(Rows, ThoseThatMayBeTakenAreAskedAll) {
  Measured measured = timed({10, 5, 4, 8, 9});
  const plan::Profile profile = measure(&measured);
  ASSERT_EQ(profile.kept.size(), 4U * 3);
  for (const plan::Kept& row : rows_of(profile, "keeps")) {
    EXPECT_FALSE(row.left_out);
    EXPECT_EQ(row.answers, 1) << row.task;
    EXPECT_EQ(row.dense, 1);
    if (row.task != plan::kProseTask) {
      EXPECT_EQ(row.asked, kOfEach);
    }
  }
  for (const plan::Kept& row : rows_of(profile, "slow")) {
    EXPECT_TRUE(row.left_out) << "another keeps all and is faster";
    if (row.task != plan::kProseTask) {
      EXPECT_EQ(row.asked, kCompared);
    }
  }
  for (const plan::Kept& row : rows_of(profile, "far")) EXPECT_FALSE(row.left_out) << "the only one at four times that";
  const std::vector<plan::Kept> loses = rows_of(profile, "loses");
  EXPECT_LT(loses[0].answers + loses[1].answers, 2) << "or this test says nothing";
  EXPECT_TRUE(loses[0].left_out);
  ASSERT_TRUE(profile.speed);
  EXPECT_EQ(profile.speed->methods.size(), 4U);
}

/// They have no right answer here: their logits decide who is asked first.
TEST_F(Rows, AllFactsAreComparedAlone) {
  engine::Sequence dense = engine_.open(plan::dense_plan(engine_.shape()));
  std::vector<Token> text = engine::random_tokens(static_cast<std::size_t>(kLength), engine_.tokenizer().size());
  dense.prefill(text);
  for (int fact = 0; fact < 3; ++fact) {
    text.push_back(33 + fact);
    study_.trials.push_back(make_trial(engine_, dense, {text, "", {}}, {.limit = 12}));
    study_.trials.back().task = plan::kFactsTask;
  }
  plans_[1] = {{"near", "64", "", {}}, engine::make(engine_, "tidal", engine::budget("200"))};
  Measured measured = timed({10, 5, 4.9, 8, 9});
  const plan::Profile profile = measure(&measured);
  ASSERT_EQ(profile.kept.size(), 4U * 4);
  for (const char* method : {"keeps", "near"}) {
    const plan::Kept facts = rows_of(profile, method).back();
    ASSERT_EQ(facts.task, plan::kFactsTask);
    EXPECT_EQ(facts.asked, 3) << "none is left for the race";
    double alone = 0;
    for (const Trial& trial : study_.trials) {
      if (trial.task != plan::kFactsTask) continue;
      alone += run_trial(engine_, trial, plans_[method[0] == 'k' ? 0 : 1].plan, {.limit = 12}).divergence / 3;
    }
    EXPECT_NEAR(facts.divergence, alone, 1e-5);
  }
  EXPECT_GT(rows_of(profile, "near").back().divergence, 0);
  EXPECT_FALSE(rows_of(profile, "keeps").front().left_out) << "the faster one is about as fast, and further away";
  EXPECT_EQ(rows_of(profile, "keeps").front().asked, kOfEach);
  EXPECT_TRUE(rows_of(profile, "near").front().left_out);
  EXPECT_EQ(rows_of(profile, "near").front().asked, kCompared);
}

TEST_F(Rows, WhoIsSlowerThanDenseAttentionIsNotAskedMore) {
  // Dense attention is timed again beside this machine's other work, so the others are slower by far.
  Measured measured = timed({3, 50000, 40000, 80000, 90000});
  for (const plan::Kept& row : measure(&measured).kept) EXPECT_TRUE(row.left_out) << row.method;
}

TEST_F(Rows, WhereDenseAttentionAnswersNothingTheTextMustAgree) {
  for (Trial& trial : study_.trials) {
    if (trial.task == plan::kProseTask) continue;
    trial.right = false;
    trial.wanted = {"nobody says this"};
  }
  Measured measured = timed({10, 5, 4, 8, 9});
  const plan::Profile profile = measure(&measured);
  for (const plan::Kept& row : rows_of(profile, "keeps")) EXPECT_FALSE(row.left_out);
  for (const plan::Kept& row : rows_of(profile, "loses")) EXPECT_TRUE(row.left_out);
}

TEST_F(Rows, WhatAPlanGaveIsMeasuredOnce) {
  Measured measured(1);
  study_.measured = &measured;
  int added = 0;
  measured.on_add([&](const Measured&) { ++added; });
  const Progress::Callback on = [](std::int64_t, std::int64_t) { return true; };
  Progress progress(on, 1000);
  std::vector<Attempt> attempts;
  for (const Trial& trial : study_.trials) {
    if (trial.answered) attempts.push_back({&trial, &plans_[1].plan});
  }
  const std::vector<Given> given = given_of(engine_, study_, attempts, progress);
  ASSERT_EQ(given.size(), attempts.size());
  EXPECT_EQ(added, 1) << "what ran together is kept together";
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Outcome alone = run_trial(engine_, *attempts[i].trial, *attempts[i].plan, {.audit = true});
    EXPECT_EQ(given[i].same, alone.same);
    EXPECT_NEAR(given[i].divergence, alone.divergence, 1e-5);
    EXPECT_NEAR(given[i].coverage, alone.coverage.value_or(1), 1e-5);
    EXPECT_EQ(given[i].agreement, alone.agreement);
  }
  // One more beside those that are known: it runs alone.
  attempts.push_back({attempts.front().trial, &plans_[0].plan});
  const std::vector<Given> more = given_of(engine_, study_, attempts, progress);
  EXPECT_EQ(added, 2);
  for (std::size_t i = 0; i < given.size(); ++i) EXPECT_EQ(more[i].divergence, given[i].divergence);
  EXPECT_TRUE(more.back().same);
}

/// Plans are asked together, dense attention of each question once.
TEST_F(Rows, AnswersOfSeveralPlansAreThoseOfEach) {
  Measured measured(1);
  study_.measured = &measured;
  const Progress::Callback on = [](std::int64_t, std::int64_t) { return true; };
  Progress progress(on, 1000);
  std::vector<Attempt> attempts;
  for (const std::size_t plan : {1U, 0U, 2U, 1U}) {
    for (const Trial& trial : study_.trials) {
      if (!trial.answered) attempts.push_back({&trial, &plans_[plan].plan});
    }
  }
  const std::vector<Answers> answers = right_of(engine_, study_, attempts, progress);
  ASSERT_EQ(answers.size(), attempts.size());
  const plan::Plan dense = plan::dense_plan(engine_.shape());
  std::set<const Trial*> lost;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    const auto right = [&](const plan::Plan& plan) {
      return run_trial(engine_, *attempts[i].trial, plan, {.limit = 1, .whole = 128}).right;
    };
    EXPECT_EQ(answers[i].right, right(*attempts[i].plan)) << i;
    EXPECT_EQ(answers[i].dense, answers[i].right || right(dense)) << i;
    if (!answers[i].right) lost.insert(attempts[i].trial);
  }
  EXPECT_GT(lost.size(), 0U) << "or this test says nothing";
  EXPECT_EQ(measured.size(), attempts.size() * 3 / 4 + lost.size());
}

TEST_F(Rows, WhoCannotKeepEnoughIsAskedNoMore) {
  const Progress::Callback on = [](std::int64_t, std::int64_t) { return true; };
  Progress progress(on, 1000);
  const plan::Plan &keeps = plans_[0].plan, &loses = plans_[1].plan;
  double same = 0;  // of the first question of both kinds
  for (std::size_t kind = 0; kind < 2; ++kind)
    same += run_trial(engine_, study_.trials[kind * kOfEach], loses, {}).same;
  ASSERT_LT(same, 2) << "or this test says nothing";
  const auto grade_of = [&](const plan::Plan& plan, bool ranks_rest, std::size_t asked) {
    Measured measured(1);
    study_.measured = &measured;
    const Grade grade = raced_grades(engine_, study_, {&plan, 1}, Enough{0.95, ranks_rest}, progress).front();
    EXPECT_EQ(measured.size(), asked);
    return grade;
  };
  constexpr std::size_t kFirst = 3, kSecond = 2, kMore = 4;  // prose and a question a kind; one a kind; two a kind
  EXPECT_EQ(grade_of(loses, false, kFirst).answers, same / 2);
  grade_of(loses, true, kFirst + kSecond);
  for (const bool ranks_rest : {false, true}) {
    EXPECT_EQ(grade_of(keeps, ranks_rest, kFirst + kSecond + kMore).answers, 1);
  }
}

TEST(StudyBudget, IsAnEighthOrTheTablesNumberNearIt) {
  EXPECT_EQ(study_budget(8000), 1024);
  EXPECT_EQ(study_budget(8192), 1024);
  EXPECT_EQ(study_budget(4096), 512);
  EXPECT_EQ(study_budget(7000), 875);
  EXPECT_EQ(study_budget(30000), 3750);
  EXPECT_EQ(study_budget(400), 50);
  EXPECT_EQ(study_budget(5), 1);
}

TEST_F(Rows, ARaceThatWasInterruptedAnywhereEndsTheSame) {
  const Measured times = timed({10, 5, 4, 8, 9});
  Measured all = *Measured::parse(times.text(), 1);
  std::vector<std::string> parts;  // what is kept behind each measurement
  all.on_add([&](const Measured& now) { parts.push_back(now.text()); });
  const std::vector<plan::Kept> whole = measure(&all).kept;
  ASSERT_GT(parts.size(), 6U);
  for (const std::string& part : parts) {
    std::optional<Measured> read = Measured::parse(part, 1);
    ASSERT_TRUE(read);
    EXPECT_EQ(measure(&*read).kept, whole);
    EXPECT_EQ(read->text(), parts.back());
  }
}

}  // namespace
}  // namespace glimpse::calibrate
