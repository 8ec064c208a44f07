#include "glimpse/calibrate/budgets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "glimpse/base/error.h"
#include "glimpse/calibrate/least_tokens.h"
#include "glimpse/policies/policy.h"

namespace glimpse::calibrate {
namespace {

/// Between the seed of the prompts that budgets are made from and that of those they are tried on.
constexpr std::uint64_t kHeldOut = 1'000'003;
/// Coverages that a KL is searched among: what is missing to 1 is a half and gets smaller by a square root of two.
constexpr int kCoverages = 21;
constexpr std::size_t kValues = 3;
/// About how many decoded tokens a plan is tried with, for the progress.
constexpr std::int64_t kSteps = 200;

std::vector<double> coverages_of(const BudgetOptions& options) {
  if (!options.divergence) return {options.coverage};
  std::vector<double> coverages;
  for (int i = 0; i < kCoverages; ++i) coverages.push_back(1 - std::pow(0.5, 1 + i / 2.0));
  return coverages;
}

/// Plans that are tried, without those of a search.
constexpr std::int64_t kPlans = 2;
std::int64_t plans_of(const BudgetOptions& options) {
  return kPlans + (options.divergence ? static_cast<std::int64_t>(std::ceil(std::log2(kCoverages + 1))) : 0);
}

class Budgets {
 public:
  Budgets(engine::Engine& engine, const BudgetOptions& options, Progress& progress)
      : engine_(engine), options_(options), progress_(progress), least_(engine.shape(), coverages_of(options)) {}

  BudgetCalibration run() {
    const std::int64_t prompts = study_work(options_.study);
    make_trials(
        engine_, options_.study, [&](const Recording& recording) { count(recording); }, progress_);
    progress_.reach(prompts);
    StudyOptions held_out = options_.study;
    held_out.seed += kHeldOut;
    trials_ = make_trials(engine_, held_out, nullptr, progress_);
    progress_.reach(2 * prompts);
    BudgetCalibration found;
    const std::size_t target = options_.divergence ? searched(found) : 0;
    found.profile = profile_of(target);
    found.kept = kept(plan_of(found.profile));
    found.kept.asked = least_.coverages()[target];
    found.kept.tokens = mean_of(found.profile);
    found.same = same(found.kept.tokens);
    return found;
  }

 private:
  void count(const Recording& recording) {
    const plan::ModelShape shape = engine_.shape();
    for (int layer = 0; layer < shape.layers; ++layer) {
      least_.add_layer(layer, pooled(attention_of(recording, shape, layer), shape.kv_heads), recording.first);
    }
  }

  plan::Profile profile_of(std::size_t target) const {
    plan::Profile profile = plan::empty_profile(engine_.shape());
    profile.budget =
        plan::BudgetProfile{options_.study.length,
                            least_.coverages()[target],
                            options_.steps,
                            options_.together,
                            options_.divergence,
                            options_.together ? least_.tokens_together(target) : least_.tokens(target, options_.steps)};
    return profile;
  }

  plan::Plan plan_of(const plan::Profile& profile) const {
    policies::PolicyOptions how;
    how.profile_budget = true;
    how.profile = &profile;
    how.extra = {{"set", "kv-head"}};
    return policies::make_plan("oracle", engine_.shape(), how);
  }

  /// Of the heads behind layer 0, which reads everything.
  double mean_of(const plan::Profile& profile) const {
    const std::vector<int>& tokens = profile.budget->tokens;
    double sum = 0;
    for (std::size_t i = static_cast<std::size_t>(engine_.shape().kv_heads); i < tokens.size(); ++i) {
      sum += static_cast<double>(std::min<std::int64_t>(tokens[i], options_.study.length));
    }
    return sum / static_cast<double>(tokens.size() - static_cast<std::size_t>(engine_.shape().kv_heads));
  }

  BudgetKept same(double tokens) {
    policies::PolicyOptions how;
    how.budget = plan::Budget{plan::BudgetRule::tokens, std::round(tokens)};
    how.extra = {{"set", "kv-head"}};
    BudgetKept all = kept(policies::make_plan("oracle", engine_.shape(), how));
    all.tokens = how.budget->value;
    return all;
  }

  /// The first of the coverages whose budgets keep the KL, found by halving: a higher one is taken to keep more.
  std::size_t searched(BudgetCalibration& found) {
    std::size_t low = 0, high = least_.coverages().size();
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      const plan::Profile profile = profile_of(middle);
      BudgetKept tried = kept(plan_of(profile));
      tried.asked = least_.coverages()[middle];
      tried.tokens = mean_of(profile);
      found.tried.push_back(tried);
      if (tried.divergence <= *options_.divergence) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    if (low == least_.coverages().size()) {
      throw UserError(
          fmt::format("a KL of {:g} is less than budgets for {:.4g} % of the mass keep, which is {:.2g}; "
                      "give more nats with --kl",
                      *options_.divergence, 100 * least_.coverages().back(), found.tried.back().divergence));
    }
    return low;
  }

  BudgetKept kept(const plan::Plan& plan) {
    const std::uint64_t key = options_.measured == nullptr ? 0 : measured_key(plan, "budget");
    if (options_.measured != nullptr) {
      if (const auto known = options_.measured->find(key, kValues)) {
        return {.divergence = (*known)[0], .agreement = (*known)[1], .coverage = (*known)[2]};
      }
    }
    BudgetKept sum;
    for (const Outcome& outcome : run_trials(engine_, trials_, plan, {.audit = true, .progress = &progress_})) {
      sum.divergence += outcome.divergence;
      sum.agreement += outcome.agreement;
      sum.coverage += outcome.coverage.value_or(1);
    }
    const auto count = static_cast<double>(trials_.size());
    sum.divergence = std::max(0.0, sum.divergence / count);  // rounding may lead below
    sum.agreement /= count;
    sum.coverage /= count;
    if (options_.measured != nullptr) options_.measured->add(key, {sum.divergence, sum.agreement, sum.coverage});
    return sum;
  }

  engine::Engine& engine_;
  const BudgetOptions& options_;
  Progress& progress_;
  LeastTokens least_;
  std::vector<Trial> trials_;  ///< held out
};

}  // namespace

std::optional<BudgetCalibration> calibrate_budgets(engine::Engine& engine, const BudgetOptions& options) {
  check(!options.together || !options.steps, "a mean, or a share of the steps");
  if (engine.shape().layers < 2) throw UserError("the model has 1 layer; budgets need 2 or more");
  const std::int64_t work = 2 * study_work(options.study) + plans_of(options) * kSteps * Progress::kStep;
  Progress progress(options.on_progress, work);
  try {
    return Budgets(engine, options, progress).run();
  } catch (const Stopped&) {
    return std::nullopt;
  }
}

}  // namespace glimpse::calibrate
