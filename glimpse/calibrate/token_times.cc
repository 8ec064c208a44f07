#include "glimpse/calibrate/token_times.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/speed.h"

namespace glimpse::calibrate {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kUntimed = 2;  ///< the first steps of a fork copy pages and build indices
constexpr int kTimed = 5;    ///< steps of a turn
constexpr int kCycles = 3;   ///< verifications that are timed

/// One decoded token by the plan on a fork of `start`, seconds: one number a timed step is added.
void time_steps(const engine::Sequence& start, const plan::Plan& plan, evaluate::ObservedPrompts& observed,
                std::vector<double>& seconds, Progress& progress) {
  const std::span<const Token> tokens = start.tokens();
  const bool observes = plan.prefill.dense_tokens(start.length()) < start.length();
  engine::Sequence sequence = observes ? observed.start(start, plan, tokens).sequence : start.fork(plan);
  for (int i = 0; i < kUntimed + kTimed; ++i) {
    const auto before = Clock::now();
    sequence.decode(tokens[static_cast<std::size_t>(i) % tokens.size()]);
    if (i >= kUntimed) seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
    progress.add(Progress::kStep);
  }
}

/// Where a request can go on from a prompt of that length without running a chunk of it again.
std::int64_t verified_length(std::int64_t length) {
  constexpr std::int64_t kChunk = 512, kWorthIt = 2048;
  return length < kWorthIt ? length : (length - 1) / kChunk * kChunk + 1;
}

/// Of a dense pass that verifies kVerifiedDrafts drafts at the end of `start`, seconds; none where none was run.
std::optional<double> verification(engine::Engine& engine, const engine::Sequence& start, const plan::Plan& draft) {
  engine::Request request;
  request.prompt.assign(start.tokens().begin(), start.tokens().end());
  request.plan = draft;
  request.max_tokens = kCycles * (plan::kVerifiedDrafts + 1);
  request.ignore_end = true;
  request.lossless = true;
  request.draft_tokens = plan::kVerifiedDrafts;
  const engine::RequestId id = engine.submit(std::move(request), start.fork(plan::dense_plan(engine.shape())));
  while (!engine.finished(id)) engine.step();
  const engine::LosslessStats stats = engine.result(id).stats.lossless;
  engine.release(id);
  if (stats.verify_passes == 0) return std::nullopt;
  return stats.verify_s / static_cast<double>(stats.verify_passes);
}

/// Milliseconds: the fixed part, for each 1,000 tokens of context, for each 1,000 tokens of a set.
using Parts = std::array<double, 3>;
constexpr unsigned kAllParts = 7;

Parts columns_of(const MethodPoint& point) {
  return {1, point.tokens / 1000, point.budget / 1000};
}

/// By the parts whose bit is set, the others 0; none where the points do not tell.
std::optional<Parts> least_squares(const std::vector<MethodPoint>& points, unsigned chosen) {
  std::array<std::array<double, 4>, 3> sums{};  // the normal equations
  for (std::size_t i = 0; i < 3; ++i) {
    if ((chosen >> i & 1U) == 0) {
      sums[i][i] = 1;  // this part is 0
      continue;
    }
    for (const MethodPoint& point : points) {
      const Parts of = columns_of(point);
      for (std::size_t j = 0; j < 3; ++j) sums[i][j] += (chosen >> j & 1U) != 0 ? of[i] * of[j] : 0;
      sums[i][3] += of[i] * point.ms;
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    const auto largest =
        std::max_element(sums.begin() + static_cast<std::ptrdiff_t>(i), sums.end(),
                         [&](const auto& a, const auto& b) { return std::abs(a[i]) < std::abs(b[i]); });
    std::swap(sums[i], *largest);
    constexpr double kTold = 1e-9;
    if (std::abs(sums[i][i]) < kTold) return std::nullopt;
    for (std::size_t j = 0; j < 3; ++j) {
      const double factor = j == i ? 0 : sums[j][i] / sums[i][i];
      for (std::size_t k = 0; k < 4; ++k) sums[j][k] -= factor * sums[i][k];
    }
  }
  return Parts{sums[0][3] / sums[0][0], sums[1][3] / sums[1][1], sums[2][3] / sums[2][2]};
}

double squared_error(const std::vector<MethodPoint>& points, const Parts& parts) {
  double sum = 0;
  for (const MethodPoint& point : points) {
    const Parts of = columns_of(point);
    const double error = point.ms - of[0] * parts[0] - of[1] * parts[1] - of[2] * parts[2];
    sum += error * error;
  }
  return sum;
}

}  // namespace

plan::TokenTime line_through(std::int64_t short_length, double short_ms, std::int64_t long_length, double long_ms) {
  check(short_length < long_length, "two lengths");
  const double slope = std::max(0.0, (long_ms - short_ms) / static_cast<double>(long_length - short_length));
  const double middle = (short_ms + long_ms) / 2;
  const double fixed = middle - slope * static_cast<double>(short_length + long_length) / 2;
  return {std::max(0.0, fixed), 1e3 * slope};
}

std::optional<MethodFit> fit_method(const std::vector<MethodPoint>& points) {
  if (!least_squares(points, kAllParts)) return std::nullopt;
  // The best fit without a negative part is the least-squares fit of some of the parts: of each choice of them.
  std::optional<Parts> best;
  double least = 0;
  for (unsigned chosen = 1; chosen <= kAllParts; ++chosen) {
    const std::optional<Parts> parts = least_squares(points, chosen);
    if (!parts || std::any_of(parts->begin(), parts->end(), [](double part) { return part < 0; })) continue;
    const double error = squared_error(points, *parts);
    if (best && error >= least) continue;
    best = parts;
    least = error;
  }
  if (!best) return std::nullopt;
  return MethodFit{(*best)[0], (*best)[1] / 1000, (*best)[2] / 1000};
}

plan::TokenTime line_of(const MethodFit& fit, const plan::Budget& budget) {
  const bool share = budget.rule == plan::BudgetRule::ratio;
  return {fit.fixed_ms + (share ? 0 : fit.ms_per_kept * budget.value),
          1e3 * (fit.ms_per_token + (share ? fit.ms_per_kept * budget.value : 0))};
}

/// Of one length.
class TokenTimes::Length {
 public:
  Length(engine::Engine& engine, engine::Sequence start, const std::vector<TimedPlan>& plans)
      : engine_(engine),
        start_(std::move(start)),
        plans_(plans),
        dense_(plan::dense_plan(engine.shape())),
        seconds_(plans.size() + 1) {}

  /// Each arm once; who comes behind whom changes from turn to turn.
  void take_turn(int turn, const std::vector<char>& which, Progress& progress) {
    const std::size_t arms = seconds_.size();
    for (std::size_t i = 0; i < arms; ++i) {
      const std::size_t arm = turn % 2 == 0 ? i : arms - 1 - i;
      if (arm > 0 && which[arm - 1] == 0) continue;
      time_steps(start_, arm == 0 ? dense_ : plans_[arm - 1].plan, observed_, seconds_[arm], progress);
    }
  }
  void verify() {
    const auto verify_s =
        plans_.empty() ? std::nullopt : verification(engine_, start_.fork(dense_, verified_at()), plans_.front().plan);
    if (verify_s) verifications_.push_back(*verify_s);
  }
  std::vector<std::vector<double>>& seconds() { return seconds_; }
  std::int64_t tokens() const { return start_.length(); }
  /// Of a token, milliseconds: 0 is dense attention, then each plan.
  double ms(std::size_t arm) const { return 1e3 * evaluate::median(seconds_[arm]); }
  std::int64_t verified_at() const { return verified_length(start_.length()); }
  double verify_ms() const { return verifications_.empty() ? ms(0) : 1e3 * evaluate::median(verifications_); }

 private:
  engine::Engine& engine_;
  engine::Sequence start_;
  const std::vector<TimedPlan>& plans_;
  plan::Plan dense_;
  evaluate::ObservedPrompts observed_;
  std::vector<std::vector<double>> seconds_;
  std::vector<double> verifications_;
};

TokenTimes::TokenTimes(engine::Engine& engine, const Study& study, const std::vector<TimedPlan>& plans)
    : engine_(engine), plans_(plans), context_(study.length + kAnswerRoom) {
  const auto longest = std::max_element(study.trials.begin(), study.trials.end(), [](const Trial& a, const Trial& b) {
    return a.dense.length() < b.dense.length();
  });
  const engine::Sequence& whole = longest->dense;
  const plan::Plan dense = plan::dense_plan(engine.shape());
  for (const std::int64_t tokens : {shorter_length(whole.length()), whole.length()}) {
    lengths_.push_back(std::make_unique<Length>(engine, whole.fork(dense, tokens), plans));
  }
}

TokenTimes::~TokenTimes() = default;

void TokenTimes::take_turn(const std::vector<char>& which, Progress& progress) {
  for (const auto& length : lengths_) length->take_turn(turns_, which, progress);
  ++turns_;
}

void TokenTimes::verify() {
  for (const auto& length : lengths_) length->verify();
}

std::vector<double> TokenTimes::taken() const {
  std::vector<double> taken;
  for (const auto& length : lengths_) {
    for (const std::vector<double>& arm : length->seconds()) taken.insert(taken.end(), arm.begin(), arm.end());
  }
  return taken;
}

bool TokenTimes::take_over(const std::vector<double>& taken) {
  const std::size_t arms = lengths_.size() * (plans_.size() + 1);
  if (taken.empty() || taken.size() % arms != 0) return false;
  const auto steps = static_cast<std::ptrdiff_t>(taken.size() / arms);
  auto from = taken.begin();
  for (const auto& length : lengths_) {
    for (std::vector<double>& arm : length->seconds()) {
      arm.assign(from, from + steps);
      from += steps;
    }
  }
  turns_ = static_cast<int>(steps) / kTimed;
  return true;
}

plan::SpeedProfile TokenTimes::speed() const {
  const Length &at_half = *lengths_.front(), &at_whole = *lengths_.back();
  const auto line = [&](double short_ms, double long_ms) {
    return line_through(at_half.tokens(), short_ms, at_whole.tokens(), long_ms);
  };
  plan::SpeedProfile speed;
  speed.threads = engine_.device_name().empty() ? engine_.threads() : 1;
  speed.kv_type = name(engine_.kv_type());
  speed.tokens = context_;
  speed.dense = line(at_half.ms(0), at_whole.ms(0));
  speed.verify = line_through(at_half.verified_at(), at_half.verify_ms(), at_whole.verified_at(), at_whole.verify_ms());
  for (std::size_t i = 0; i < plans_.size(); ++i) {
    speed.methods.push_back(plans_[i].row);
    speed.methods.back().time = line(at_half.ms(i + 1), at_whole.ms(i + 1));
  }
  // Each row's two points alone say little of its slope: those of a method share what does not depend on the budget.
  for (plan::MethodTime& row : speed.methods) {
    std::vector<MethodPoint> points;
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      if (plans_[i].row.method != row.method || plans_[i].row.options != row.options) continue;
      for (const Length* times : {&at_half, &at_whole}) {
        const std::int64_t tokens = times->tokens();
        const std::int64_t budget = plan::budget_tokens(plan::parse_budget(plans_[i].row.budget), tokens);
        points.push_back({static_cast<double>(budget), static_cast<double>(tokens), times->ms(i + 1)});
      }
    }
    if (const auto fit = fit_method(points)) row.time = line_of(*fit, plan::parse_budget(row.budget));
  }
  return speed;
}

}  // namespace glimpse::calibrate
