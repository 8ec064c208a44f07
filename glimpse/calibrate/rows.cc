#include "glimpse/calibrate/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/calibrate/race.h"
#include "glimpse/policies/choose_method.h"

namespace glimpse::calibrate {
namespace {

constexpr int kTurns = 2;          // of every plan, so that a busy moment does not decide
constexpr int kFineTurns = 2;      // of dense attention and of the rows that may be taken, behind them
constexpr std::size_t kBatch = 8;  // questions that a row is asked before the race is looked at again
constexpr double kNever = std::numeric_limits<double>::infinity();

/// The questions of one kind of task.
struct Questions {
  std::string name;
  std::vector<const Trial*> first, rest;  ///< those that all rows are asked, and those behind them
};

std::vector<Questions> questions_of(const Study& study) {
  std::vector<Questions> kinds;
  for (const Trial& trial : study.trials) {
    if (kinds.empty() || kinds.back().name != trial.task) kinds.push_back({trial.task, {}, {}});
    Questions& kind = kinds.back();
    const bool first = !plan::has_answers(trial.task) || static_cast<int>(kind.first.size()) < kCompared;
    (first ? kind.first : kind.rest).push_back(&trial);
  }
  return kinds;
}

/// What is known of a row in one kind of task.
struct Standing {
  int asked = 0, right = 0, dense = 0;
  double divergence = 0, coverage = 1, agreement = 1;  ///< of the first round, means

  double share(int of) const { return static_cast<double>(of) / asked; }
};

class Table {
 public:
  Table(engine::Engine& engine, const Study& study, const std::vector<TimedPlan>& plans, Progress& progress)
      : engine_(engine), study_(study), plans_(plans), progress_(progress), kinds_(questions_of(study)) {
    for (const Questions& kind : kinds_) {
      if (!plan::has_answers(kind.name)) continue;
      questions_ += static_cast<int>(kind.first.size() + kind.rest.size());
    }
    // In turn from each kind, so that a batch has all of them.
    for (std::size_t i = 0, more = 1; more > 0; ++i) {
      more = 0;
      for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
        if (i >= kinds_[kind].rest.size()) continue;
        rest_.push_back({kind, kinds_[kind].rest[i]});
        ++more;
      }
    }
    rows_.assign(plans.size(), {std::vector<Standing>(kinds_.size()), 0});
  }

  void run(plan::Profile& profile) {
    TokenTimes times(engine_, study_, plans_);
    time_all(times);
    ask_first();
    std::vector<char> timed(rows_.size(), 0);
    do {
      while (const std::optional<std::size_t> which = next(times.speed())) ask_more(*which);
      std::vector<char> fine;
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        fine.push_back(is_whole(rows_[i]) && timed[i] == 0 ? 1 : 0);
        timed[i] = is_whole(rows_[i]) ? 1 : 0;
      }
      for (int turn = 0; turn < kFineTurns; ++turn) {
        times.take_turn(fine, progress_);
        times.verify();
      }
    } while (next(times.speed()));  // a busy moment may have hidden that dense attention is slow further out
    profile.speed = times.speed();
    for (std::size_t i = 0; i < rows_.size(); ++i) write(plans_[i].row, rows_[i], profile);
  }

 private:
  struct Question {
    std::size_t kind;
    const Trial* trial;
  };
  struct Row {
    std::vector<Standing> kinds;
    std::size_t behind;  ///< of rest_, that it was asked
  };

  bool is_whole(const Row& row) const { return row.behind == rest_.size(); }

  /// Turns of every plan. Kept with the rest, as the race begins with it.
  void time_all(TokenTimes& times) {
    std::string which = fmt::format("steps of {} threads", engine_.threads());
    for (const TimedPlan& timed : plans_) which += fmt::format(" {:016x}", measured_key(timed.plan, "row"));
    const std::uint64_t key = measured_key(plan::dense_plan(engine_.shape()), which);
    const auto taken = study_.measured->find(key);
    if (taken && times.take_over(*taken)) return;
    for (int turn = 0; turn < kTurns; ++turn) times.take_turn(std::vector<char>(plans_.size(), 1), progress_);
    study_.measured->add(key, times.taken());
  }

  void ask_first() {
    std::vector<Attempt> attempts;
    for (const TimedPlan& timed : plans_) {
      for (const Questions& kind : kinds_) {
        for (const Trial* trial : kind.first) attempts.push_back({trial, &timed.plan});
      }
    }
    const std::vector<Given> given = given_of(engine_, study_, attempts, progress_);
    // Where tokens differ, what the plan says of itself may be right all the same.
    std::vector<Attempt> others;
    std::vector<Standing*> whose;
    auto next = given.begin();
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
        const std::vector<const Trial*>& first = kinds_[kind].first;
        Standing& standing = rows_[i].kinds[kind];
        standing = standing_of(first, {next, next + std::ssize(first)});
        for (const Trial* trial : first) {
          if ((next++)->same || trial->wanted.empty()) continue;
          others.push_back({trial, &plans_[i].plan});
          whose.push_back(&standing);
        }
      }
    }
    const std::vector<Answers> answers = right_of(engine_, study_, others, progress_);
    for (std::size_t i = 0; i < answers.size(); ++i) whose[i]->right += answers[i].right ? 1 : 0;
  }

  /// By what was given alone.
  static Standing standing_of(std::span<const Trial* const> trials, std::span<const Given> given) {
    Standing standing{static_cast<int>(trials.size()), 0, 0, 0, 0, 0};
    const auto count = static_cast<double>(trials.size());
    for (std::size_t i = 0; i < trials.size(); ++i) {
      standing.divergence += given[i].divergence / count;
      standing.agreement += given[i].agreement / count;
      standing.coverage += given[i].coverage / count;
      standing.dense += trials[i]->right ? 1 : 0;
      standing.right += given[i].same && trials[i]->right ? 1 : 0;
    }
    // Rounding may lead a little out of range.
    standing.divergence = std::max(0.0, standing.divergence);
    standing.agreement = std::min(1.0, standing.agreement);
    standing.coverage = std::min(1.0, standing.coverage);
    return standing;
  }

  /// The next questions.
  void ask_more(std::size_t which) {
    Row& row = rows_[which];
    const auto batch = std::span(rest_).subspan(row.behind, std::min(kBatch, rest_.size() - row.behind));
    std::vector<Attempt> attempts;
    for (const Question& question : batch) attempts.push_back({question.trial, &plans_[which].plan});
    const std::vector<Answers> answers = right_of(engine_, study_, attempts, progress_);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Standing& kind = row.kinds[batch[i].kind];
      ++kind.asked;
      kind.right += answers[i].right ? 1 : 0;
      kind.dense += answers[i].dense ? 1 : 0;
    }
    row.behind += batch.size();
  }

  Racer racer_of(std::size_t which, const plan::SpeedProfile& speed, std::int64_t length) const {
    const Row& row = rows_[which];
    const plan::MethodTime& timed = speed.methods[which];
    Racer racer;
    // Further out a number of tokens says nothing (policies).
    const bool share = plan::parse_budget(timed.budget).rule == plan::BudgetRule::ratio;
    racer.ms = {timed.time.at(length), share ? timed.time.at(kFar * length) : kNever};
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      const Standing& kind = row.kinds[i];
      if (kinds_[i].name != plan::kProseTask) racer.divergence += kind.divergence / static_cast<double>(kinds_.size());
      if (!plan::has_answers(kinds_[i].name)) continue;
      racer.asked += kind.asked;
      racer.lost += std::max(0, kind.dense - kind.right);
      const std::vector<const Trial*>& first = kinds_[i].first;
      const bool answered = std::any_of(first.begin(), first.end(), [](const Trial* trial) { return trial->right; });
      if (!answered && kind.agreement < policies::kAgreeing) racer.refused = true;
    }
    return racer;
  }

  /// Which row the race asks next, by these times.
  std::optional<std::size_t> next(const plan::SpeedProfile& speed) const {
    const std::int64_t length = study_.length;
    std::vector<Racer> racers;
    for (std::size_t i = 0; i < rows_.size(); ++i) racers.push_back(racer_of(i, speed, length));
    return next_racer(racers, {speed.dense.at(length), speed.dense.at(kFar * length)}, questions_);
  }

  void write(const plan::MethodTime& of, const Row& row, plan::Profile& profile) const {
    for (std::size_t i = 0; i < kinds_.size(); ++i) {
      const Standing& kind = row.kinds[i];
      plan::Kept kept{of.method,
                      of.budget,
                      kinds_[i].name,
                      kind.share(kind.right),
                      kind.share(kind.dense),
                      kind.divergence,
                      kind.coverage,
                      kind.agreement,
                      of.options};
      kept.asked = kind.asked;
      kept.left_out = !is_whole(row);
      profile.kept.push_back(std::move(kept));
    }
  }

  engine::Engine& engine_;
  const Study& study_;
  const std::vector<TimedPlan>& plans_;
  Progress& progress_;
  std::vector<Questions> kinds_;
  std::vector<Question> rest_;  ///< behind the first of all kinds, in the order of asking
  int questions_ = 0;           ///< in all, of kinds that have answers
  std::vector<Row> rows_;
};

}  // namespace

void measure_rows(engine::Engine& engine, const Study& study, const std::vector<TimedPlan>& plans,
                  plan::Profile& profile, Progress& progress) {
  Table(engine, study, plans, progress).run(profile);
}

}  // namespace glimpse::calibrate
