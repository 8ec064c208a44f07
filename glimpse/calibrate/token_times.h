// How long a decoded token takes under several plans, on forks of a prompt that dense attention has read: the plans
// take turns in one process, medians, at two lengths. Runs the engine; one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "glimpse/calibrate/study.h"
#include "glimpse/plan/speed_profile.h"

namespace glimpse::calibrate {

struct TimedPlan {
  plan::MethodTime row;  ///< its time is what is looked for
  plan::Plan plan;
};

/// The shorter of the two lengths: a plan whose budget covers it is dense there, and two points say nothing of it.
constexpr std::int64_t shorter_length(std::int64_t length) {
  return length / 2;
}

/// The line through two times of 0 ms or more; level where it would fall.
plan::TokenTime line_through(std::int64_t short_length, double short_ms, std::int64_t long_length, double long_ms);

/// One measurement of a method: at so many tokens of context its sets held `budget` of them.
struct MethodPoint {
  double budget = 0, tokens = 0, ms = 0;
};
/// The time of a method's token as fixed_ms + ms_per_token * tokens + ms_per_kept * budget.
struct MethodFit {
  double fixed_ms = 0, ms_per_token = 0, ms_per_kept = 0;
};
/// By least squares over all that was measured of the method, no part below 0, so that each row's line has the others'
/// measurements in it. None where the points do not tell.
std::optional<MethodFit> fit_method(const std::vector<MethodPoint>& points);
/// The fit at a budget, by the length of the context: a share of the context grows with it, a number of tokens does
/// not.
plan::TokenTime line_of(const MethodFit& fit, const plan::Budget& budget);

/// Times dense attention, verifications and plans on the study's longest prompt. Borrows what it is given.
class TokenTimes {
 public:
  TokenTimes(engine::Engine& engine, const Study& study, const std::vector<TimedPlan>& plans);
  ~TokenTimes();
  TokenTimes(const TokenTimes&) = delete;
  TokenTimes& operator=(const TokenTimes&) = delete;

  /// Dense attention and the plans with a 1 in `which`, once at each length.
  void take_turn(const std::vector<char>& which, Progress& progress);
  /// One at each length.
  void verify();
  /// All steps so far, to be kept; and back before any turn. False for what is of other plans.
  std::vector<double> taken() const;
  bool take_over(const std::vector<double>& taken);
  /// By medians. Each plan has had a turn. The processor's name is left empty: the caller knows it.
  plan::SpeedProfile speed() const;

 private:
  class Length;
  engine::Engine& engine_;
  const std::vector<TimedPlan>& plans_;
  std::int64_t context_;
  std::vector<std::unique_ptr<Length>> lengths_;  ///< the shorter one first
  int turns_ = 0;
};

}  // namespace glimpse::calibrate
