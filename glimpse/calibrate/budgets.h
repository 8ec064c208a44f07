// Calibration of budgets: the least tokens of each KV head for a share of its softmax mass, or the shares that keep the
// logits near dense attention's. The engine outlives the call and has room for study_sequences(); one thread,
// and the callback runs on it.
#pragma once

#include <optional>
#include <vector>

#include "glimpse/calibrate/study.h"
#include "glimpse/plan/profile.h"

namespace glimpse::calibrate {

struct BudgetOptions {
  StudyOptions study;
  double coverage = 0.95;            ///< share of the mass, in (0, 1)
  std::optional<double> steps;       ///< the share of steps that capture it; none: they do on average
  bool together = false;             ///< the mean of the heads behind layer 0 captures it; without `steps`
  std::optional<double> divergence;  ///< instead of `coverage`: the KL to dense that is kept, nats, over 0
  Measured* measured = nullptr;      ///< as in CalibrationOptions; none: nowhere
  Progress::Callback on_progress;    ///< as there
};

/// What budgets keep of dense attention in prompts that they were not made from, where every KV head behind layer 0
/// reads the best of exact scores (`oracle` with a set per KV head).
struct BudgetKept {
  double asked = 0;       ///< the coverage that they were made for; 0: the same budget for all heads
  double tokens = 0;      ///< the mean of those heads
  double divergence = 0;  ///< KL(dense || plan), nats, the mean over prompts
  double agreement = 0;   ///< share of tokens whose first choice is dense attention's
  double coverage = 0;    ///< softmax mass that is read, the mean over heads
};

struct BudgetCalibration {
  plan::Profile profile;          ///< its part `budget`; without the fingerprint of the model's file
  BudgetKept kept, same;          ///< of the profile, and of as many tokens for every head
  std::vector<BudgetKept> tried;  ///< of a KL: in the order of the search
};

/// Empty where the callback ended it. Throws UserError for a model or context that cannot be calibrated, and for a KL
/// that the budgets of no coverage keep.
std::optional<BudgetCalibration> calibrate_budgets(engine::Engine& engine, const BudgetOptions& options);

}  // namespace glimpse::calibrate
