#include "glimpse/calibrate/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"
#include "glimpse/calibrate/rows.h"

namespace glimpse::calibrate {
namespace {

constexpr std::array<std::string_view, 7> kParts{"all", "kascade", "tidal", "retrieval", "roles", "budget", "methods"};
/// About how many tokens are decoded for choices and table: who is asked what shows on the way.
constexpr std::int64_t kStepsOfAll = 8'000, kStepsOfPart = 2'500;

const std::map<std::string, std::string> kDensePrefill{{"prefill", "dense"}};

/// Methods whose choices a part makes, and of all parts the paper's method that needs none.
std::vector<WantedMethod> methods_of(const Calibration& found, Part part) {
  std::vector<WantedMethod> methods;
  const auto add = [&](std::string_view method) { methods.push_back({std::string(method), {}, {}, std::nullopt}); };
  if (found.tidal) add("tidal");
  if (found.lessismore) add("lessismore");
  if (found.omnikv) add("omnikv");
  if (found.kascade) {
    add("kascade");
    methods.back().options = "prefill=dense";
    methods.back().how.extra = kDensePrefill;
  }
  if (part == Part::all || part == Part::retrieval) {
    add("lychee-decode");
    add("evosparse");
  }
  if (part == Part::all) add("lychee-cluster");
  std::erase_if(methods, [&](const WantedMethod& method) {
    return std::any_of(found.left_out.begin(), found.left_out.end(),
                       [&](const LeftOut& out) { return out.method == method.method; });
  });
  return methods;
}

/// What the table is made of, by what the profile says.
std::vector<TimedPlan> table_plans(const engine::Engine& engine, std::int64_t length, const plan::Profile& profile,
                                   std::span<const WantedMethod> methods) {
  std::vector<TimedPlan> plans;
  const auto add = [&](const WantedMethod& method, std::string_view budget) {
    policies::PolicyOptions options = method.how;
    options.budget = plan::parse_budget(budget);
    const std::int64_t half = shorter_length(length);
    if (plan::budget_tokens(*options.budget, length) >= half) {
      if (!method.budget) return;
      throw UserError(
          fmt::format("{}:{} is not below half of the prompts' {} tokens, at which times are measured, too; give a "
                      "smaller budget, or calibrate the model with a larger -c",
                      method.method, budget, length));
    }
    const policies::Policy& policy = policies::find_policy(method.method);
    options.profile = policies::uses_profile(policy, profile) ? &profile : nullptr;
    plan::Plan plan = policies::make_plan(method.method, engine.shape(), options);
    if (plan::forgets(plan)) {
      throw UserError(
          fmt::format("{}: it forgets tokens that a later question may need, so --attn auto does not take it; 'glimpse "
                      "eval' says what it keeps",
                      method.method));
    }
    if (const std::string why = engine.refusal(plan); !why.empty()) throw UserError(why);
    plans.push_back({{method.method, std::string(budget), method.options, {}}, std::move(plan)});
  };
  for (const WantedMethod& method : methods) {
    if (method.budget) {
      add(method, *method.budget);
    } else {
      for (const std::string_view budget : kTableBudgets) add(method, budget);
    }
  }
  return plans;
}

Calibration calibrate_or_stop(engine::Engine& engine, const CalibrationOptions& options) {
  check(options.part != Part::roles && options.part != Part::budget, "a part that is made elsewhere");
  check(options.measured != nullptr, "a place for what is measured");
  const plan::ModelShape shape = engine.shape();
  constexpr int kLeastLayers = 4;
  if (shape.layers < 2 || (options.part == Part::tidal && shape.layers < kLeastLayers)) {
    throw UserError(fmt::format("the model has {} layer{}; {} needs {} or more", shape.layers,
                                shape.layers == 1 ? "" : "s",
                                options.part == Part::tidal ? "a layer that selects again" : "calibration",
                                options.part == Part::tidal ? kLeastLayers : 2));
  }
  StudyOptions how = options.study;
  how.race = true;
  const std::int64_t prompts = study_work(how);
  const std::int64_t steps = options.part == Part::all ? kStepsOfAll : kStepsOfPart;
  Progress progress(options.on_progress, prompts + steps * Progress::kStep);
  Study study = make_study(engine, how, progress);
  study.measured = options.measured;
  progress.reach(prompts);

  Calibration found;
  found.length = study.length;
  found.budget = study.budget;
  found.profile = plan::empty_profile(shape);
  const bool all = options.part == Part::all;
  const auto runs = [&](const std::string& method, const std::map<std::string, std::string>& extra = {}) {
    std::string why = refusal_of(engine, study, method, extra);
    if (why.empty()) return true;
    found.left_out.push_back({method, std::move(why)});
    return false;
  };
  if (all || options.part == Part::retrieval) {
    found.profile.retrieval = plan::RetrievalProfile{study.retrieval};
    if (runs("lychee-decode")) {
      found.heads = choose_heads(engine, study, progress);
      found.profile.roles = found.heads->roles;
    }
    runs("evosparse");
  }
  if ((all || options.part == Part::tidal) && shape.layers >= kLeastLayers) {
    if (runs("tidal")) {
      found.tidal = choose_tidal(engine, study, progress);
      found.profile.tidal = plan::TidalProfile{found.tidal->layers.front()};
    }
    Choice again = runs("lessismore") ? choose_lessismore(engine, study, progress) : Choice{};
    if (!again.layers.empty()) {
      found.profile.lessismore = plan::LessIsMoreProfile{again.layers.front()};
      found.lessismore = std::move(again);
    }
    Choice filters = runs("omnikv") ? choose_omnikv(engine, study, progress) : Choice{};
    if (!filters.layers.empty()) {
      found.profile.omnikv = plan::OmniKvProfile{filters.layers};
      found.omnikv = std::move(filters);
    }
  }
  if ((all || options.part == Part::kascade) && runs("kascade", kDensePrefill)) {
    found.kascade = choose_kascade(engine, study, progress);
    found.profile.kascade = found.kascade->profile;
  }
  if (all) runs("lychee-cluster");
  const std::vector<TimedPlan> plans =
      table_plans(engine, study.length, found.profile, methods_of(found, options.part));
  measure_rows(engine, study, plans, found.profile, progress);
  found.profile.speed->processor = options.processor;
  return found;
}

plan::Profile measure_or_stop(engine::Engine& engine, const plan::Profile& profile,
                              std::span<const WantedMethod> methods, const CalibrationOptions& options) {
  check(options.measured != nullptr, "a place for what is measured");
  StudyOptions prompts = options.study;
  prompts.tables = false;
  prompts.race = true;
  // What cannot be measured is refused before the prompts are read.
  const std::vector<TimedPlan> plans = table_plans(engine, prompts.length, profile, methods);
  const std::int64_t work = study_work(prompts);
  Progress progress(options.on_progress, work + kStepsOfPart * Progress::kStep);
  Study study = make_study(engine, prompts, progress);
  study.measured = options.measured;
  progress.reach(work);
  plan::Profile rows = plan::empty_profile(engine.shape());
  measure_rows(engine, study, plans, rows, progress);
  rows.speed->processor = options.processor;
  return rows;
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

std::optional<plan::Profile> measure_methods(engine::Engine& engine, const plan::Profile& profile,
                                             std::span<const WantedMethod> methods, const CalibrationOptions& options) {
  try {
    return measure_or_stop(engine, profile, methods, options);
  } catch (const Stopped&) {
    return std::nullopt;
  }
}

}  // namespace glimpse::calibrate
