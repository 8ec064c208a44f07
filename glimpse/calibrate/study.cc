#include "glimpse/calibrate/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/tasks/prose.h"

namespace glimpse::calibrate {
namespace {

constexpr int kSentences = 900;
constexpr int kAnswerLimit = 128;    // of dense attention, so that it is known to be right
constexpr int kRecordedTail = 6;     // last tokens of a prompt
constexpr int kRecordedAnswer = 24;  // tokens
constexpr int kProseTokens = 16;

/// One prompt, read once, and what is asked about it.
struct Haystack {
  Task task;
  int questions;
  int recorded;  ///< of them
};
constexpr std::array kHaystacks{Haystack{Task::multikey, 2, 2}, Haystack{Task::vt, 3, 1},
                                Haystack{Task::passkey, 6, 1}};

/// One recording's part of the tables.
class Tables {
 public:
  Tables(const plan::ModelShape& shape, int budget) : near(shape, kSimilaritySet), wide(shape, budget), scores(shape) {}

  void add(const Recording& recording) {
    const plan::ModelShape& shape = near.shape();
    near.begin(recording);
    wide.begin(recording);
    scores.begin(recording);
    for (int layer = 0; layer < shape.layers; ++layer) {
      const LayerAttention attention = attention_of(recording, shape, layer);
      scores.add_layer(layer, attention);
      const LayerAttention groups = pooled(attention, shape.kv_heads);
      near.add_layer(layer, groups);
      wide.add_layer(layer, groups);
    }
    near.end();
    wide.end();
  }

  Similarity near, wide;
  RetrievalScores scores;
};

}  // namespace

std::int64_t study_work(const StudyOptions& options) {
  std::int64_t work = 0;
  for (const Haystack& haystack : kHaystacks) {
    work += options.length;
    if (!options.tables) continue;
    work += haystack.recorded * (kRecordedTail + kRecordedAnswer) * 3 * Progress::kStep;
  }
  return work;
}

std::vector<Trial> make_trials(engine::Engine& engine, const StudyOptions& options,
                               const std::function<void(const Recording&)>& on_recording, Progress& progress) {
  if (!engine.tokenizer().has_chat_template()) {
    throw UserError(
        "the model has no chat template, and calibration asks it questions; give an instruction-tuned model");
  }
  const std::string filler =
      (options.text.empty() ? "" : options.text + "\n\n") + evaluate::generated_prose(kSentences, options.seed);
  const PromptMaker maker(engine.tokenizer(), filler);
  std::vector<Trial> trials;
  std::string refused;
  std::uint64_t seed = options.seed;
  for (const Haystack& haystack : kHaystacks) {
    std::vector<RetrievalPrompt> prompts;
    try {
      PromptRequest request{haystack.task, options.length, ++seed};
      request.chains = haystack.questions;
      prompts = maker.make_all(request, static_cast<std::size_t>(haystack.questions));
    } catch (const UserError& error) {
      refused = error.what();
      continue;
    }
    const engine::Sequence dense = evaluate::dense_prefill(engine, prompts.front().tokens, progress);
    std::vector<Trial> asked =
        evaluate::make_trials(engine, dense, prompts, {.limit = kAnswerLimit, .progress = &progress});
    for (std::size_t i = 0; i < asked.size(); ++i) {
      Trial& trial = asked[i];
      trial.task = name(haystack.task);
      if (on_recording && static_cast<int>(i) < haystack.recorded) {
        on_recording(record_trial(engine, trial, kRecordedTail, kRecordedAnswer));
        progress.add((kRecordedTail + kRecordedAnswer) * 3 * Progress::kStep);
      }
      trials.push_back(std::move(trial));
    }
    if (haystack.task != Task::multikey) continue;
    trials.push_back(prose_trial(engine, dense, options.length * 3 / 4, kProseTokens));
    if (on_recording) on_recording(record_trial(engine, trials.back(), 1, kProseTokens));
  }
  if (trials.empty()) {
    throw UserError(
        fmt::format("a context of {} tokens is too small to calibrate in: {}", options.length + kAnswerRoom, refused));
  }
  return trials;
}

Study make_study(engine::Engine& engine, const StudyOptions& options, Progress& progress) {
  const int budget = std::max(1, static_cast<int>(options.length / 8));
  Tables tables(engine.shape(), budget);
  Study study{options.length, budget, {}, {}, tables.near, tables.wide, {}};
  engine.measure_change(options.tables);
  std::function<void(const Recording&)> add;
  if (options.tables) add = [&](const Recording& recording) { tables.add(recording); };
  study.trials = make_trials(engine, options, add, progress);
  study.importance = engine.attention_change();
  engine.measure_change(false);
  study.near = std::move(tables.near);
  study.wide = std::move(tables.wide);
  study.retrieval = tables.scores.scores();
  return study;
}

}  // namespace glimpse::calibrate
