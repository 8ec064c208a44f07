// Trials on a small random model: what plans keep of dense attention's answers, and a calibration from end to end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/calibrate/calibrate.h"
#include "glimpse/evaluate/logit_statistics.h"
#include "glimpse/evaluate/tasks/prose.h"
#include "tests/calibrate/without_times.h"
#include "tests/engine/support.h"

namespace glimpse::calibrate {
namespace {

using testing::HasSubstr;

engine::EngineOptions with_room() {
  engine::EngineOptions options = engine::options_for(reference::test_model("llama"));
  options.sequences = study_sequences(options.context);
  return options;
}

/// A prompt of plain tokens: a tiny model's chat is noise anyway.
RetrievalPrompt some_prompt(const engine::Engine& engine, std::size_t length) {
  return {engine::random_tokens(length, engine.tokenizer().size()), "", {"1234567"}};
}

TEST(Trials, DensePlansKeepAll) {
  engine::Engine engine(with_room());
  const RetrievalPrompt prompt = some_prompt(engine, 120);
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(prompt.tokens);
  const Trial trial = make_trial(engine, dense, prompt, {.limit = 10});
  ASSERT_EQ(trial.logits.size(), trial.answer.size());
  const Outcome same = run_trial(engine, trial, engine::make(engine, "tidal", engine::budget("4000")),
                                 {.limit = 10, .audit = true, .alone = true});
  EXPECT_TRUE(same.same);
  EXPECT_LT(same.divergence, 1e-9);
  EXPECT_EQ(same.agreement, 1);
  EXPECT_DOUBLE_EQ(same.coverage.value_or(1), 1);
}

/// A race asks all kinds about one prompt where it holds what they hide.
TEST(Trials, WhatOnePromptDoesNotHoldIsAskedInPromptsOfTheirOwn) {
  for (const auto& [length, prompts] : {std::pair{2400, 3u}, {3600, 1u}}) {
    SCOPED_TRACE(length);
    engine::EngineOptions options = engine::options_for(reference::test_model("llama"));
    options.context = static_cast<std::int32_t>(length + kAnswerRoom);
    options.sequences = study_sequences(options.context);
    engine::Engine engine(options);
    evaluate::Progress progress({}, 1 << 30);
    std::set<std::vector<Token>> beginnings;
    std::map<std::string, int> kinds;
    for (const Trial& trial : make_trials(
             engine, {.length = length, .seed = 3, .tables = false, .race = true, .mixed_from = 0}, {}, progress)) {
      beginnings.emplace(trial.prompt.begin(), trial.prompt.begin() + length / 2);
      ++kinds[trial.task];
      EXPECT_EQ(trial.wanted.empty(), !plan::has_answers(trial.task)) << trial.task;
    }
    EXPECT_EQ(beginnings.size(), prompts);
    for (const char* kind : {"multikey", "vt", "passkey", "prose"}) EXPECT_GE(kinds[kind], 1) << kind;
    EXPECT_EQ(kinds[std::string(plan::kFactsTask)], prompts == 1 ? 8 : 0) << "where one prompt holds all";
  }
}

TEST(Trials, DivergenceIsThatOfForcedLogits) {
  engine::Engine engine(with_room());
  const RetrievalPrompt prompt = some_prompt(engine, 200);
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(prompt.tokens);
  const Trial trial = make_trial(engine, dense, prompt, {.limit = 8});
  const plan::Plan plan = engine::make(engine, "tidal", engine::budget("16"));
  const Outcome outcome = run_trial(engine, trial, plan, {.limit = 8, .alone = true});
  // The same from sequences of their own.
  engine::Sequence full = engine.open(plan::dense_plan(engine.shape())), sparse = engine.open(plan);
  full.prefill(prompt.tokens);
  sparse.prefill(prompt.tokens);
  double sum = 0;
  bool same = true;
  int agreed = 0;
  for (std::size_t i = 0; i + 1 < trial.answer.size(); ++i) {
    const auto p = full.decode(trial.answer[i]);
    const std::vector<float> kept(p.begin(), p.end());
    const auto q = sparse.decode(trial.answer[i]);
    EXPECT_EQ(evaluate::arg_max(kept), trial.answer[i + 1]);
    same = same && evaluate::arg_max(q) == trial.answer[i + 1];
    agreed += evaluate::arg_max(q) == trial.answer[i + 1] ? 1 : 0;
    sum += evaluate::divergence(kept, q);
  }
  EXPECT_EQ(outcome.same, same);
  EXPECT_DOUBLE_EQ(outcome.agreement, static_cast<double>(agreed) / static_cast<double>(trial.answer.size() - 1));
  EXPECT_GT(sum, 0);
  EXPECT_NEAR(outcome.divergence, sum / static_cast<double>(trial.answer.size() - 1), 1e-5);
}

TEST(Trials, TogetherGiveWhatEachGivesAlone) {
  engine::Engine engine(with_room());
  std::vector<RetrievalPrompt> prompts{some_prompt(engine, 200), some_prompt(engine, 200)};
  prompts[1].tokens.back() = (prompts[1].tokens.back() + 1) % engine.tokenizer().size();
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(prompts[0].tokens);
  const std::vector<Trial> trials = evaluate::make_trials(engine, dense, prompts, {.limit = 8});
  ASSERT_EQ(trials.size(), prompts.size());
  const std::vector<plan::Plan> plans{engine::make(engine, "tidal", engine::budget("16")),
                                      engine::make(engine, "h2o", engine::budget("48"))};
  std::vector<Attempt> attempts;
  for (const Trial& trial : trials) {
    for (const plan::Plan& plan : plans) attempts.push_back({&trial, &plan});
  }
  const TrialOptions how{.limit = 8, .audit = true, .alone = true};
  const std::vector<Outcome> outcomes = run_trials(engine, attempts, how);
  ASSERT_EQ(outcomes.size(), attempts.size());
  for (std::size_t i = 0; i < trials.size(); ++i) {
    EXPECT_EQ(trials[i].answer, make_trial(engine, dense, prompts[i], {.limit = 8}).answer) << i;
  }
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome alone = run_trial(engine, *attempts[i].trial, *attempts[i].plan, how);
    EXPECT_EQ(outcomes[i].same, alone.same) << i;
    EXPECT_EQ(outcomes[i].right, alone.right) << i;
    EXPECT_EQ(outcomes[i].agreement, alone.agreement) << i;
    EXPECT_EQ(outcomes[i].divergence, alone.divergence) << i;
    EXPECT_EQ(outcomes[i].coverage, alone.coverage) << i;
    EXPECT_EQ(outcomes[i].reads.bytes_read, alone.reads.bytes_read) << i;
  }
}

// Answers of many lengths: where one ends another begins, in the pass of those that go on.
TEST(Trials, MoreThanAPassHoldsGiveWhatEachGivesAlone) {
  engine::Engine engine(with_room());
  const RetrievalPrompt prompt = some_prompt(engine, 200);
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(prompt.tokens);
  std::vector<Trial> trials;
  for (const int limit : {1, 5, 0, 9}) trials.push_back(make_trial(engine, dense, prompt, {.limit = limit}));
  const std::vector<plan::Plan> plans{engine::make(engine, "tidal", engine::budget("16")),
                                      engine::make(engine, "tidal", engine::budget("400")),
                                      engine::make(engine, "h2o", engine::budget("48"))};
  std::vector<Attempt> attempts;
  while (attempts.size() < 2 * evaluate::kTogether) {
    for (const plan::Plan& plan : plans) {
      for (const Trial& trial : trials) attempts.push_back({&trial, &plan});
    }
  }
  const TrialOptions how{.limit = 9, .audit = true, .whole = 12};
  const std::vector<Outcome> outcomes = run_trials(engine, attempts, how);
  ASSERT_EQ(outcomes.size(), attempts.size());
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    const Outcome alone = run_trial(engine, *attempts[i].trial, *attempts[i].plan, how);
    EXPECT_EQ(outcomes[i].same, alone.same) << i;
    EXPECT_EQ(outcomes[i].answer, alone.answer) << i;
    EXPECT_EQ(outcomes[i].agreement, alone.agreement) << i;
    EXPECT_NEAR(outcomes[i].divergence, alone.divergence, 1e-4 * (1 + alone.divergence)) << i;
    EXPECT_EQ(outcomes[i].coverage.has_value(), alone.coverage.has_value()) << i;
    EXPECT_EQ(outcomes[i].reads.sparse_steps, alone.reads.sparse_steps) << i;
  }
}

/// What one budget has observed of a prompt serves the others, and a plan that keeps more than heat only itself.
TEST(Trials, APromptThatWasObservedGivesWhatOneReadAnewDoes) {
  engine::Engine engine(with_room());
  const RetrievalPrompt prompt = some_prompt(engine, 200);
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(prompt.tokens);
  const Trial trial = make_trial(engine, dense, prompt, {.limit = 8});
  evaluate::ObservedPrompts observed;
  for (const auto& [policy, size] : {std::pair("evosparse", "128"),
                                     {"evosparse", "144"},
                                     {"tova", "48"},
                                     {"tova", "64"},
                                     {"evosparse", "40%"},
                                     {"tova", "48"}}) {
    SCOPED_TRACE(fmt::format("{} {}", policy, size));
    const plan::Plan plan = engine::make(engine, policy, engine::budget(size));
    ASSERT_LT(plan.prefill.dense_tokens(200), 200);
    const Outcome anew = run_trial(engine, trial, plan, {.limit = 8, .audit = true});
    const Outcome kept = run_trial(engine, trial, plan, {.limit = 8, .audit = true, .observed = &observed});
    EXPECT_EQ(kept.divergence, anew.divergence);
    EXPECT_EQ(kept.coverage, anew.coverage);
    EXPECT_EQ(kept.agreement, anew.agreement);
  }
}

TEST(Trials, WithoutDenseAttentionsAnswerAPlanGivesItsOwn) {
  engine::Engine engine(with_room());
  const RetrievalPrompt prompt = some_prompt(engine, 200);
  engine::Sequence dense = engine.open(plan::dense_plan(engine.shape()));
  dense.prefill(prompt.tokens);
  const Trial answered = make_trial(engine, dense, prompt, {.limit = 12});
  Trial other = make_trial(engine, dense, prompt, {.limit = 0});
  EXPECT_TRUE(answered.answered);
  EXPECT_FALSE(other.answered);
  EXPECT_EQ(other.answer, std::vector<Token>{answered.answer.front()});
  for (const char* tokens : {"16", "64", "4000"}) {
    const plan::Plan plan = engine::make(engine, "tidal", engine::budget(tokens));
    const TrialOptions whole{.limit = 8, .whole = 12};
    const Outcome fed = run_trial(engine, answered, plan, whole);
    ASSERT_FALSE(fed.answer.empty());
    Outcome own = run_trial(engine, other, plan, whole);
    EXPECT_EQ(own.answer, fed.answer) << tokens;
    EXPECT_FALSE(own.right);
    other.wanted = {fed.answer};
    other.metric = evaluate::Metric::any;
    own = run_trial(engine, other, plan, whole);
    EXPECT_EQ(own.right, evaluate::score(other.metric, own.answer, other.wanted) == 1) << tokens;
    other.wanted = {"1234567"};
  }
  EXPECT_THROW(run_trial(engine, other, engine::make(engine, "tidal", engine::budget("16")), {}), InternalError);
}

TEST(Trials, PositionsAreThoseOfTheWantedText) {
  engine::Engine engine(engine::options_for(reference::test_model("llama")));
  const PromptMaker maker(engine.tokenizer(), evaluate::generated_prose(400, 3));
  for (const Task task : {Task::single, Task::vt}) {
    const RetrievalPrompt prompt = maker.make(task, 2500, 6);
    const std::vector<std::int32_t> positions = positions_of(engine.tokenizer(), prompt.tokens, prompt.wanted);
    std::string text;
    for (const std::int32_t position : positions) {
      text += engine.tokenizer().piece(prompt.tokens[static_cast<std::size_t>(position)]);
    }
    // Every mention, whole: a name in the chain is mentioned twice but for the last.
    std::size_t length = 0;
    for (std::size_t i = 0; i < prompt.wanted.size(); ++i) {
      EXPECT_THAT(text, HasSubstr(prompt.wanted[i]));
      length += prompt.wanted[i].size() * (task == Task::vt && i + 1 < prompt.wanted.size() ? 2 : 1);
    }
    EXPECT_GE(text.size(), length);
    EXPECT_LE(text.size(), length + 2 * positions.size());
  }
}

TEST(Calibrate, MakesAProfileThatPoliciesTake) {
  engine::Engine engine(with_room());
  CalibrationOptions options;
  Measured measured(1);
  options.measured = &measured;
  options.study.length = 1500;
  options.processor = "a processor";
  std::int64_t last = 0;
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    EXPECT_GE(done, last);
    EXPECT_LE(done, total);
    last = done;
    return true;
  };
  const std::optional<Calibration> found = calibrate(engine, options);
  ASSERT_TRUE(found);
  const plan::ModelShape shape = engine.shape();
  plan::validate_for(found->profile, shape);
  EXPECT_EQ(plan::parse_profile(plan::to_json(found->profile)), found->profile);
  for (const char* part : {"kascade", "tidal", "retrieval"}) EXPECT_TRUE(found->profile.has(part)) << part;
  for (const char* method : {"kascade", "tidal", "lychee-decode", "evosparse"}) {
    policies::PolicyOptions how;
    how.profile = &found->profile;
    std::vector<std::string> warnings;
    how.warnings = &warnings;
    policies::make_plan(method, shape, how);
    EXPECT_TRUE(warnings.empty()) << warnings.front();
  }
  ASSERT_TRUE(found->lessismore);
  EXPECT_GT(found->lessismore->layers.front(), 2);
  EXPECT_FALSE(found->profile.kept.empty());
  for (const plan::Kept& row : found->profile.kept) {
    EXPECT_GE(row.divergence, -1e-9) << row.method;
    EXPECT_GT(row.coverage, 0) << row.method;
    EXPECT_LE(row.coverage, 1 + 1e-6) << row.method;
    EXPECT_TRUE(row.agreement) << row.method;
    EXPECT_EQ(row.options, row.method == "kascade" ? "prefill=dense" : "");
  }
  ASSERT_TRUE(found->profile.speed);
  EXPECT_EQ(found->profile.speed->processor, "a processor");
  EXPECT_EQ(found->profile.speed->tokens, 1500 + kAnswerRoom);
  for (const plan::MethodTime& row : found->profile.speed->methods) {
    const auto same = [&](const plan::Kept& kept) {
      return kept.method == row.method && kept.budget == row.budget && kept.options == row.options;
    };
    EXPECT_TRUE(std::any_of(found->profile.kept.begin(), found->profile.kept.end(), same)) << row.method;
  }
  last = 0;
  // But for times, and for whom the race asked by them, a function of the model and the seed.
  Measured again(1);
  options.measured = &again;
  EXPECT_EQ(without_times(calibrate(engine, options)->profile), without_times(found->profile));
}

TEST(Study, KindsShareAPromptThatHoldsThemAll) {
  engine::EngineOptions how = with_room();
  how.context = 4096;
  how.sequences = study_sequences(how.context);
  engine::Engine engine(how);
  const Progress::Callback on = [](std::int64_t, std::int64_t) { return true; };
  for (const std::int64_t length : {3500, 3800}) {
    Progress progress(on, 1 << 20);
    const std::vector<Trial> trials = make_trials(engine, {.length = length, .race = true}, {}, progress);
    std::map<std::string, std::vector<const Trial*>> kinds;
    for (const Trial& trial : trials) kinds[trial.task].push_back(&trial);
    ASSERT_EQ(kinds["multikey"].size(), 4U);
    ASSERT_EQ(kinds["vt"].size(), 4U);
    ASSERT_EQ(kinds["passkey"].size(), 8U);
    const auto shared = [&](const char* a, const char* b) {
      return shared_tokens(kinds[a].front()->prompt, kinds[b].back()->prompt);
    };
    EXPECT_GT(shared("vt", "vt"), 3000);
    EXPECT_EQ(shared("vt", "multikey") > 3000, length == 3800);
    EXPECT_EQ(shared("vt", "passkey") > 3000, length == 3800);
  }
}

TEST(Calibrate, EndsWhereItIsToldTo) {
  engine::Engine engine(with_room());
  CalibrationOptions options;
  Measured measured(1);
  options.measured = &measured;
  options.study.length = 1500;
  int calls = 0;
  options.on_progress = [&](std::int64_t, std::int64_t) { return ++calls < 4; };
  EXPECT_FALSE(calibrate(engine, options));
  EXPECT_EQ(calls, 4);
}

TEST(Calibrate, RefusesWhatHoldsNoTask) {
  engine::Engine engine(with_room());
  CalibrationOptions options;
  Measured measured(1);
  options.measured = &measured;
  options.study.length = 100;
  try {
    calibrate(engine, options);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("too small"));
  }
  EXPECT_THROW(parse_part("kaskade"), UserError);
  EXPECT_EQ(parse_part("tidal"), Part::tidal);
}

}  // namespace
}  // namespace glimpse::calibrate
