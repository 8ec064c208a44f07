#include "glimpse/calibrate/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>

#include "glimpse/base/checksum.h"
#include "glimpse/base/error.h"
#include "glimpse/evaluate/tasks/prose.h"
#include "glimpse/plan/profile.h"

namespace glimpse::calibrate {
namespace {

constexpr int kSentences = 900;
constexpr int kAnswerLimit = 128;    // of dense attention, so that it is known to be right
constexpr int kRecordedTail = 6;     // last tokens of a prompt
constexpr int kRecordedAnswer = 24;  // tokens
constexpr int kProseTokens = 16;
constexpr int kFacts = 8;  // that are asked for, two of each person

/// One kind of task of a haystack.
struct Kind {
  Task task;
  int hidden;          ///< as evaluate::PromptRequest's
  int questions;       ///< that are asked
  int recorded;        ///< of them
  int compared;        ///< of them: their logits are kept
  bool graded = true;  ///< answers are right or wrong; false: logits alone are compared
};
/// One prompt, read once, and what is asked about it.
using Haystack = std::vector<Kind>;

/// From so many on there is room for more of it.
constexpr std::int64_t kManyFrom = 6000;

bool mixes(const StudyOptions& options) {
  return options.race && options.length >= options.mixed_from;
}

std::vector<Haystack> haystacks_of(const StudyOptions& options, bool mixed) {
  constexpr int kAll = 1 << 20;
  if (!options.race) {
    return {{{Task::multikey, 0, 2, 2, kAll}}, {{Task::vt, 3, 3, 1, kAll}}, {{Task::passkey, 0, 6, 1, kAll}}};
  }
  const bool many = options.length >= kManyFrom;
  if (mixed) {
    return {{{Task::multikey, many ? 10 : 4, many ? 10 : 4, 1, kCompared},
             {Task::vt, many ? 8 : 4, many ? 8 : 4, 1, kCompared},
             {Task::passkey, 0, many ? 10 : 8, 1, kCompared},
             {Task::qa, kFacts / 2, kFacts, 0, kFacts, false}}};
  }
  return {
      {{Task::multikey, 4, 4, 2, kCompared}}, {{Task::vt, 4, 4, 1, kCompared}}, {{Task::passkey, 0, 8, 1, kCompared}}};
}

/// For each kind its questions, the same text in front of all of them.
std::vector<std::vector<RetrievalPrompt>> prompts_of(const PromptMaker& maker, const Haystack& haystack,
                                                     std::int64_t length, std::uint64_t seed) {
  if (haystack.size() == 1) {
    const Kind& kind = haystack.front();
    return {maker.make_all({.task = kind.task, .length = length, .seed = seed, .hidden = kind.hidden},
                           static_cast<std::size_t>(kind.questions))};
  }
  std::vector<evaluate::MixedTask> tasks;
  for (const Kind& kind : haystack) {
    tasks.push_back({kind.task, kind.hidden, static_cast<std::size_t>(kind.questions), !kind.graded});
  }
  return maker.make_mixed(tasks, length, seed);
}

struct Asked {
  Haystack haystack;
  std::vector<std::vector<RetrievalPrompt>> prompts;  ///< of each of its kinds
};

/// The haystacks that the length holds, and why it does not hold the last of the others.
std::vector<Asked> asked_of(const PromptMaker& maker, const StudyOptions& options, bool mixed, std::string& refused) {
  std::vector<Asked> all;
  std::uint64_t seed = options.seed;
  for (Haystack& haystack : haystacks_of(options, mixed)) {
    try {
      std::vector<std::vector<RetrievalPrompt>> prompts = prompts_of(maker, haystack, options.length, ++seed);
      all.push_back({std::move(haystack), std::move(prompts)});
    } catch (const UserError& error) {
      refused = error.what();
    }
  }
  return all;
}

std::uint64_t key_of(const plan::Plan& plan, std::string_view what, const Trial& trial) {
  return measured_key(plan, fmt::format("{} {:016x}", what, checksum(std::as_bytes(std::span(trial.prompt)))));
}

/// What runs together is kept together: who is in a pass changes the last digits of a sum, and a calibration that was
/// interrupted goes on with the same groups.
std::vector<std::span<const std::size_t>> groups_of(std::span<const std::size_t> all) {
  constexpr std::size_t kGroup = 4 * evaluate::kTogether;
  std::vector<std::span<const std::size_t>> groups;
  for (; !all.empty(); all = all.subspan(groups.back().size()))
    groups.push_back(all.first(std::min(kGroup, all.size())));
  return groups;
}

/// What plans observed so far. Beside short prompts a cache has little room, and to read their ends anew costs little.
evaluate::ObservedPrompts* observed_for(const Study& study) {
  return study.length >= kMixedFrom ? study.observed.get() : nullptr;
}

/// One recording's part of the tables.
class Tables {
 public:
  Tables(const plan::ModelShape& shape, int budget, int threads)
      : near(shape, kSimilaritySet), wide(shape, budget), scores(shape), team_(threads) {}

  void add(const Recording& recording) {
    const plan::ModelShape& shape = near.shape();
    near.begin(recording);
    wide.begin(recording);
    scores.begin(recording);
    for (int layer = 0; layer < shape.layers; ++layer) {
      const LayerAttention attention = attention_of(recording, shape, layer, &team_);
      scores.add_layer(layer, attention);
      const LayerAttention groups = pooled(attention, shape.kv_heads, &team_);
      near.add_layer(layer, groups, &team_);
      wide.add_layer(layer, groups, &team_);
    }
    near.end();
    wide.end();
  }

  Similarity near, wide;
  RetrievalScores scores;

 private:
  evaluate::ThreadTeam team_;
};

}  // namespace

int study_budget(std::int64_t length) {
  const std::int64_t eighth = std::max<std::int64_t>(1, length / 8);
  for (const std::string_view text : kTableBudgets) {
    const plan::Budget budget = plan::parse_budget(text);
    const std::int64_t tokens = plan::budget_tokens(budget, length);
    const bool near = std::abs(eighth - tokens) * 16 <= tokens;
    if (budget.rule == plan::BudgetRule::tokens && near) return static_cast<int>(tokens);
  }
  return static_cast<int>(eighth);
}

std::int64_t study_work(const StudyOptions& options) {
  std::int64_t work = 0;
  for (const Haystack& haystack : haystacks_of(options, mixes(options))) {
    work += options.length;
    for (const Kind& kind : haystack) {
      if (options.tables) work += kind.recorded * (kRecordedTail + kRecordedAnswer) * 3 * Progress::kStep;
    }
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
  std::vector<Asked> asked = asked_of(maker, options, mixes(options), refused);
  // A tokenizer may make so much of what is hidden that one prompt does not hold it all.
  if (asked.empty() && mixes(options)) asked = asked_of(maker, options, false, refused);
  for (const auto& [haystack, prompts] : asked) {
    const engine::Sequence dense = evaluate::dense_prefill(engine, prompts.front().front().tokens, progress);
    for (std::size_t i = 0; i < haystack.size(); ++i) {
      const std::size_t first = trials.size();
      const std::size_t compared = std::min(prompts[i].size(), static_cast<std::size_t>(haystack[i].compared));
      for (const bool unanswered : {false, true}) {
        const auto all = std::span<const RetrievalPrompt>(prompts[i]);
        for (Trial& trial :
             evaluate::make_trials(engine, dense, unanswered ? all.subspan(compared) : all.first(compared),
                                   {.limit = unanswered ? 0 : kAnswerLimit, .progress = &progress})) {
          trial.task = name(haystack[i].task);
          if (!haystack[i].graded) trial.wanted.clear();
          trials.push_back(std::move(trial));
        }
      }
      for (std::size_t j = 0; on_recording && j < static_cast<std::size_t>(haystack[i].recorded); ++j) {
        on_recording(record_trial(engine, trials[first + j], kRecordedTail, kRecordedAnswer));
        progress.add((kRecordedTail + kRecordedAnswer) * 3 * Progress::kStep);
      }
    }
    if (haystack.front().task != Task::multikey) continue;
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
  const int budget = study_budget(options.length);
  Tables tables(engine.shape(), budget, engine.threads());
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

std::vector<Given> given_of(engine::Engine& engine, const Study& study, std::span<const Attempt> attempts,
                            Progress& progress) {
  constexpr std::size_t kValues = 4;
  std::vector<Given> given(attempts.size());
  std::vector<std::uint64_t> keys;
  std::vector<std::size_t> unknown;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    keys.push_back(key_of(*attempts[i].plan, "fed", *attempts[i].trial));
    if (const auto known = study.measured->find(keys.back(), kValues)) {
      given[i] = {(*known)[0] != 0, (*known)[1], (*known)[2], (*known)[3]};
    } else {
      unknown.push_back(i);
    }
  }
  std::optional<OwnPrefill> own;
  for (const std::span<const std::size_t> group : groups_of(unknown)) {
    std::vector<Attempt> together;
    for (const std::size_t i : group) together.push_back(attempts[i]);
    const std::vector<Outcome> outcomes = run_trials(
        engine, together, {.audit = true, .own = &own, .observed = observed_for(study), .progress = &progress});
    std::map<std::uint64_t, std::vector<double>> kept;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const Outcome& outcome = outcomes[i];
      const Given now{outcome.same, outcome.divergence, outcome.agreement, outcome.coverage.value_or(1)};
      kept[keys[group[i]]] = {now.same ? 1.0 : 0.0, now.divergence, now.agreement, now.coverage};
      given[group[i]] = now;
    }
    study.measured->add(std::move(kept));
  }
  return given;
}

std::vector<Answers> right_of(engine::Engine& engine, const Study& study, std::span<const Attempt> attempts,
                              Progress& progress) {
  // Whether the answers are right that are given of themselves.
  const auto ask = [&](std::span<const Attempt> some) {
    std::vector<std::uint64_t> keys;
    std::vector<std::size_t> unknown;
    std::map<std::uint64_t, bool> right;
    for (std::size_t i = 0; i < some.size(); ++i) {
      keys.push_back(key_of(*some[i].plan, "answer to", *some[i].trial));
      const auto known = study.measured->find(keys.back(), 1);
      const bool first = right.try_emplace(keys.back(), known && known->front() != 0).second;
      if (first && !known) unknown.push_back(i);
    }
    for (const std::span<const std::size_t> group : groups_of(unknown)) {
      std::vector<Attempt> together;
      for (const std::size_t i : group) together.push_back(some[i]);
      const std::vector<Outcome> outcomes =
          run_trials(engine, together,
                     {.limit = 1, .observed = observed_for(study), .progress = &progress, .whole = kAnswerLimit});
      std::map<std::uint64_t, std::vector<double>> kept;
      for (std::size_t i = 0; i < group.size(); ++i) {
        right[keys[group[i]]] = outcomes[i].right;
        kept[keys[group[i]]] = {outcomes[i].right ? 1.0 : 0.0};
      }
      study.measured->add(std::move(kept));
    }
    std::vector<char> of_each;
    for (const std::uint64_t key : keys) of_each.push_back(right[key] ? 1 : 0);
    return of_each;
  };
  const std::vector<char> right = ask(attempts);
  const plan::Plan dense_plan = plan::dense_plan(engine.shape());
  std::vector<Attempt> untold;  // of dense attention
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    if (right[i] == 0 && !attempts[i].trial->answered) untold.push_back({attempts[i].trial, &dense_plan});
  }
  const std::vector<char> dense = ask(untold);
  std::vector<Answers> answers;
  auto next = dense.begin();
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    const Trial& trial = *attempts[i].trial;
    if (right[i] != 0) {
      answers.push_back({true, true});
    } else {
      answers.push_back({false, trial.answered ? trial.right : *next++ != 0});
    }
  }
  return answers;
}

}  // namespace glimpse::calibrate
