#include "glimpse/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"

namespace glimpse::calibrate {
namespace {

constexpr std::array<std::string_view, 4> kParts{"all", "kascade", "tidal", "retrieval"};
constexpr std::array<std::string_view, 3> kBudgets{"512", "1024", "10%"};

/// A method whose choices a part makes, with its options beside the profile.
struct Method {
  std::string name;
  std::map<std::string, std::string> extra;
};

std::vector<Method> methods_of(const Calibration& found, Part part) {
  std::vector<Method> methods;
  if (found.tidal) methods.push_back({"tidal", {}});
  if (found.lessismore) methods.push_back({"lessismore", {}});
  if (found.omnikv) methods.push_back({"omnikv", {}});
  if (found.kascade) methods.push_back({"kascade", {{"prefill", "dense"}}});
  if (part == Part::all || part == Part::retrieval) {
    methods.push_back({"lychee-decode", {}});
    methods.push_back({"evosparse", {}});
  }
  return methods;
}

void add_rows(engine::Engine& engine, const Study& study, const Method& method, std::string_view budget,
              Calibration& found, Progress& progress) {
  policies::PolicyOptions options;
  options.budget = plan::parse_budget(budget);
  options.extra = method.extra;
  options.profile = &found.profile;
  const plan::Plan plan = policies::make_plan(method.name, engine.shape(), options);
  struct Sum {
    double answers = 0, dense = 0, divergence = 0, coverage = 0;
    int trials = 0, covered = 0;
  };
  std::vector<std::pair<std::string, Sum>> sums;
  for (const Trial& trial : study.trials) {
    const Outcome outcome = run_trial(engine, trial, plan, {.audit = true, .progress = &progress, .alone = true});
    auto there = std::find_if(sums.begin(), sums.end(), [&](const auto& sum) { return sum.first == trial.task; });
    if (there == sums.end()) there = sums.emplace(sums.end(), trial.task, Sum{});
    Sum& sum = there->second;
    sum.answers += outcome.right ? 1 : 0;
    sum.dense += trial.right ? 1 : 0;
    sum.divergence += outcome.divergence;
    sum.coverage += outcome.coverage.value_or(0);
    sum.covered += outcome.coverage ? 1 : 0;
    ++sum.trials;
  }
  for (const auto& [task, sum] : sums) {
    // Rounding may lead a little out of range.
    found.profile.kept.push_back({method.name, std::string(budget), task, sum.answers / sum.trials,
                                  sum.dense / sum.trials, std::max(0.0, sum.divergence / sum.trials),
                                  sum.covered > 0 ? std::min(1.0, sum.coverage / sum.covered) : 1.0});
  }
}

Calibration calibrate_or_stop(engine::Engine& engine, const CalibrationOptions& options) {
  const plan::ModelShape shape = engine.shape();
  constexpr int kLeastLayers = 4;
  if (shape.layers < 2 || (options.part == Part::tidal && shape.layers < kLeastLayers)) {
    throw UserError(fmt::format("the model has {} layer{}; {} needs {} or more", shape.layers,
                                shape.layers == 1 ? "" : "s",
                                options.part == Part::tidal ? "a layer that selects again" : "calibration",
                                options.part == Part::tidal ? kLeastLayers : 2));
  }
  // The steps of choices and table are known only when the prompts are answered: about this many.
  const std::int64_t prompts = study_work(options.study);
  const std::int64_t share = options.part == Part::all ? 2 : 1;
  Progress progress(options.on_progress, prompts * (1 + share));
  const Study study = make_study(engine, options.study, progress);
  progress.reach(prompts);

  Calibration found;
  found.length = study.length;
  found.budget = study.budget;
  found.profile = plan::empty_profile(shape);
  const bool all = options.part == Part::all;
  if (all || options.part == Part::retrieval) {
    found.profile.retrieval = plan::RetrievalProfile{study.retrieval};
    found.heads = choose_heads(engine, study, progress);
    found.profile.roles = found.heads->roles;
  }
  if ((all || options.part == Part::tidal) && shape.layers >= kLeastLayers) {
    found.tidal = choose_tidal(engine, study, progress);
    found.profile.tidal = plan::TidalProfile{found.tidal->layers.front()};
    Choice again = choose_lessismore(engine, study, progress);
    if (!again.layers.empty()) {
      found.profile.lessismore = plan::LessIsMoreProfile{again.layers.front()};
      found.lessismore = std::move(again);
    }
    Choice filters = choose_omnikv(engine, study, progress);
    if (!filters.layers.empty()) {
      found.profile.omnikv = plan::OmniKvProfile{filters.layers};
      found.omnikv = std::move(filters);
    }
  }
  if (all || options.part == Part::kascade) {
    found.kascade = choose_kascade(engine, study, progress);
    found.profile.kascade = found.kascade->profile;
  }
  for (const Method& method : methods_of(found, options.part)) {
    for (const std::string_view budget : kBudgets) {
      if (plan::budget_tokens(plan::parse_budget(budget), study.length) >= study.length) continue;
      add_rows(engine, study, method, budget, found, progress);
    }
  }
  return found;
}

}  // namespace

Part parse_part(std::string_view text) {
  const auto found = std::find(kParts.begin(), kParts.end(), text);
  if (found == kParts.end()) throw UserError(unknown_name("part of a profile", text, kParts));
  return static_cast<Part>(found - kParts.begin());
}

std::optional<Calibration> calibrate(engine::Engine& engine, const CalibrationOptions& options) {
  try {
    return calibrate_or_stop(engine, options);
  } catch (const Stopped&) {
    return std::nullopt;
  }
}

}  // namespace glimpse::calibrate
