#include "glimpse/train/compare.h"

#include <fmt/format.h>

#include "glimpse/calibrate/retrieval_scores.h"
#include "glimpse/calibrate/trials.h"
#include "glimpse/evaluate/tasks/prose.h"
#include "glimpse/policies/policy.h"
#include "glimpse/train/choices.h"
#include "glimpse/train/passkeys.h"

namespace glimpse::train {
namespace {

constexpr int kSentences = 900;
constexpr int kTail = 6;        // last tokens of a prompt that are recorded
constexpr int kAnswer = 96;     // tokens of an answer that are tried
constexpr int kScoreBooks = 2;  // that retrieval scores are of
/// Seeds of books beside those of the training.
constexpr std::uint64_t kScoreSeed = 0x5c0e0000, kHeldOut = 0x7e570000;

/// The answers of dense attention to passkeys of a few books.
std::vector<evaluate::Trial> trials_of(engine::Engine& engine, const CompareOptions& options, std::uint64_t seed,
                                       int books, std::size_t questions, evaluate::Progress& progress) {
  const std::string filler =
      (options.text.empty() ? "" : options.text + "\n\n") + evaluate::generated_prose(kSentences, seed);
  const evaluate::PromptMaker maker(engine.tokenizer(), filler);
  std::vector<evaluate::Trial> trials;
  for (int book = 0; book < books; ++book) {
    auto prompts =
        maker.make_all({evaluate::Task::passkey, options.length, seed + static_cast<std::uint64_t>(book)}, questions);
    const engine::Sequence dense = evaluate::dense_prefill(engine, prompts.front().tokens, progress);
    for (evaluate::RetrievalPrompt& prompt : prompts) {
      prompt.metric = evaluate::Metric::rouge_l;  // a small model gives few of the 32 words without a mistake
    }
    auto answered =
        evaluate::make_trials(engine, dense, prompts, {.limit = kAnswer, .tried = kAnswer, .progress = &progress});
    std::move(answered.begin(), answered.end(), std::back_inserter(trials));
  }
  return trials;
}

std::vector<double> retrieval_scores(engine::Engine& engine, const CompareOptions& options,
                                     evaluate::Progress& progress) {
  const plan::ModelShape shape = engine.shape();
  calibrate::RetrievalScores scores(shape);
  for (const evaluate::Trial& trial : trials_of(engine, options, options.seed + kScoreSeed, kScoreBooks, 1, progress)) {
    const calibrate::Recording recording = calibrate::record_trial(engine, trial, kTail, kAnswer);
    scores.begin(recording);
    for (int layer = 0; layer < shape.layers; ++layer) {
      scores.add_layer(layer, calibrate::attention_of(recording, shape, layer));
    }
    progress.add((kTail + kAnswer) * evaluate::Progress::kStep);
  }
  return scores.scores();
}

/// What the choice gives of every trial, added to the row.
void add_to(ComparedRow& row, engine::Engine& engine, const std::vector<evaluate::Trial>& trials,
            const plan::Plan& plan, double weight, evaluate::Progress& progress) {
  const evaluate::TrialOptions how{.limit = kAnswer, .progress = &progress, .alone = true};
  for (const evaluate::Outcome& outcome : evaluate::run_trials(engine, trials, plan, how)) {
    const double share = weight / static_cast<double>(trials.size());
    row.divergence += share * outcome.divergence;
    row.agreement += share * outcome.agreement;
    row.passkeys += share * outcome.score;
  }
}

}  // namespace

std::int64_t compare_work(const CompareOptions& options) {
  const std::int64_t prompts = std::int64_t{options.books} * PasskeyExamples::kQuestions;
  const std::int64_t answers = (1 + (3 + kDraws) * static_cast<std::int64_t>(options.budgets.size())) * prompts;
  return (options.books + kScoreBooks) * options.length + answers * kAnswer / 2 * evaluate::Progress::kStep;
}

Comparison compared(engine::Engine& engine, const plan::RolesProfile& trained, const CompareOptions& options,
                    evaluate::Progress& progress) {
  const plan::ModelShape shape = engine.shape();
  const int count = retrieval_heads(shape, trained);
  const std::vector<double> scores = retrieval_scores(engine, options, progress);
  const auto trials =
      trials_of(engine, options, options.seed + kHeldOut, options.books, PasskeyExamples::kQuestions, progress);
  Comparison comparison;
  comparison.prompts = static_cast<int>(trials.size());
  for (const evaluate::Trial& trial : trials) {
    comparison.dense += trial.score / static_cast<double>(trials.size());
  }
  struct Choice {
    std::string name;
    std::vector<plan::RolesProfile> roles;
  };
  Choice drawn{"random", {}};
  for (int i = 1; i <= kDraws; ++i) drawn.roles.push_back(random_roles(shape, count, static_cast<std::uint64_t>(i)));
  const std::vector<Choice> choices{{"trained", {trained}},
                                    drawn,
                                    {"even", {even_roles(shape, count)}},
                                    {"retrieval score", {scored_roles(shape, count, scores)}}};
  for (const plan::Budget& budget : options.budgets) {
    for (const Choice& choice : choices) {
      ComparedRow row{choice.name, plan::to_string(budget), 0, 0, 0};
      for (const plan::RolesProfile& roles : choice.roles) {
        plan::Profile profile = plan::empty_profile(shape);
        profile.roles = roles;
        policies::PolicyOptions how;
        how.budget = budget;
        how.profile = &profile;
        add_to(row, engine, trials, policies::make_plan("lychee-decode", shape, how),
               1.0 / static_cast<double>(choice.roles.size()), progress);
      }
      comparison.rows.push_back(std::move(row));
    }
  }
  return comparison;
}

}  // namespace glimpse::train
