#include "glimpse/calibrate/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include "glimpse/calibrate/heads.h"
#include "glimpse/policies/layers.h"

namespace glimpse::calibrate {
namespace {

constexpr std::size_t kLayers = 5;  // candidates of TidalDecode
constexpr std::size_t kOthers = 3;  // of LessIsMore, and layers that OmniKV's filters are taken from
constexpr double kKept = 0.95;      // of the answers: enough anchors
constexpr std::array kHeadShares{0.125, 0.1875, 0.25, 0.375, 0.5};  // of the KV heads, LycheeDecode's
constexpr int kFewestAnchors = 5;                                   // as in the paper
constexpr int kChecks = 3;                                          // of Kascade's own prefill
constexpr int kSelect = 2;                                          // the first selecting layer of both methods

/// The method's plan at the study's budget, by what a profile says; `extra` are options.
plan::Plan plan_by(const plan::Profile& found, std::string_view method, const Study& study,
                   const std::map<std::string, std::string>& extra = {}) {
  policies::PolicyOptions options;
  options.budget = plan::Budget{plan::BudgetRule::tokens, static_cast<double>(study.budget)};
  options.extra = extra;
  options.profile = &found;
  return policies::make_plan(method, study.wide.shape(), options);
}

/// A method, and how a profile says which layers it takes.
struct LayerMethod {
  std::string_view name;
  void (*write)(plan::Profile& found, const std::vector<int>& layers);
};

/// So that sums in any order compare.
double rounded(double share) {
  return std::round(share * 1e9) / 1e9;
}

/// Questions of every kind of task, or of one; prose may be among them.
struct Round {
  int first, count;
  bool prose;
  std::string_view task;
};

/// Each plan on each trial, those of a plan one behind the other.
std::vector<Attempt> attempts_of(std::span<const plan::Plan> plans, std::span<const Trial* const> trials) {
  std::vector<Attempt> attempts;
  for (const plan::Plan& plan : plans) {
    for (const Trial* trial : trials) attempts.push_back({trial, &plan});
  }
  return attempts;
}

/// Of questions that dense attention has not answered: the share that is not lost.
std::vector<Grade> lasting_of(engine::Engine& engine, const Study& study, std::span<const plan::Plan> plans,
                              std::span<const Trial* const> trials, Progress& progress) {
  const std::vector<Answers> answers = right_of(engine, study, attempts_of(plans, trials), progress);
  std::vector<Grade> grades;
  for (auto each = answers.begin(); each != answers.end();) {
    double kept = 0;
    for (std::size_t i = 0; i < trials.size(); ++i, ++each) kept += each->right || !each->dense ? 1 : 0;
    grades.push_back({rounded(kept / static_cast<double>(trials.size())), 0});
  }
  return grades;
}

std::vector<Grade> round_of(engine::Engine& engine, const Study& study, std::span<const plan::Plan> plans,
                            const Round& round, Progress& progress) {
  std::map<std::string, int> seen, asked;  // of a kind
  std::vector<const Trial*> trials;
  for (const Trial& trial : study.trials) {
    const bool prose = trial.task == plan::kProseTask;
    if (trial.task == plan::kFactsTask || (!round.task.empty() && trial.task != round.task)) continue;
    const int at = seen[trial.task]++;
    if (prose ? !round.prose : (at < round.first || at >= round.first + round.count)) continue;
    if (!prose) ++asked[trial.task];
    trials.push_back(&trial);
  }
  if (trials.empty()) return std::vector<Grade>(plans.size(), Grade{1, 0});
  if (round.first >= kCompared) return lasting_of(engine, study, plans, trials, progress);
  const std::vector<Given> given = given_of(engine, study, attempts_of(plans, trials), progress);
  std::vector<Grade> grades;
  for (auto each = given.begin(); each != given.end();) {
    double lost = 0, divergence = 0;
    for (const Trial* trial : trials) {
      if (!trial->wanted.empty() && !each->same) lost += 1 / static_cast<double>(asked.size()) / asked[trial->task];
      divergence += (each++)->divergence;
    }
    grades.push_back({rounded(1 - lost), divergence / static_cast<double>(trials.size())});
  }
  return grades;
}

/// The best of the candidates, of equals the first.
Choice decide(engine::Engine& engine, const Study& study, std::vector<Candidate> candidates, const LayerMethod& method,
              Progress& progress) {
  std::vector<plan::Plan> plans;
  for (const Candidate& candidate : candidates) {
    plan::Profile found = plan::empty_profile(engine.shape());
    method.write(found, candidate.layers);
    plans.push_back(plan_by(found, method.name, study));
  }
  const std::vector<Grade> grades = raced_grades(engine, study, plans, std::nullopt, progress);
  Choice choice;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].grade = grades[i];
    if (!choice.layers.empty() && !(choice.grade < grades[i])) continue;
    choice.layers = candidates[i].layers;
    choice.grade = grades[i];
  }
  choice.candidates = std::move(candidates);
  return choice;
}

/// Layers behind `select` by what the heads would read of needles if they selected again.
std::vector<Candidate> ranked_layers(const Study& study, int select, std::size_t most) {
  std::vector<Candidate> ranked;
  for (int layer = select + 1; layer < study.wide.shape().layers; ++layer) {
    ranked.push_back({{layer}, captured_by(study.wide, select, layer), {}});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Candidate& a, const Candidate& b) { return a.captured > b.captured; });
  ranked.resize(std::min(ranked.size(), most));
  return ranked;
}

}  // namespace

std::string refusal_of(const engine::Engine& engine, const Study& study, std::string_view method,
                       const std::map<std::string, std::string>& extra) {
  policies::PolicyOptions options;
  options.budget = plan::Budget{plan::BudgetRule::tokens, static_cast<double>(study.budget)};
  options.extra = extra;
  std::vector<std::string> warnings;
  options.warnings = &warnings;
  return engine.refusal(policies::make_plan(method, study.wide.shape(), options));
}

std::vector<Grade> grades_of(engine::Engine& engine, const Study& study, std::span<const plan::Plan> plans,
                             std::string_view task, Progress& progress) {
  return round_of(engine, study, plans, {0, kCompared, true, task}, progress);
}

std::vector<Grade> raced_grades(engine::Engine& engine, const Study& study, std::span<const plan::Plan> plans,
                                const std::optional<Enough>& enough, Progress& progress) {
  constexpr std::array kRounds{Round{0, 1, true, ""}, Round{1, 1, false, ""}, Round{kCompared, 2, false, ""}};
  if (plans.empty()) return {};
  std::vector<Grade> grades = round_of(engine, study, plans, kRounds.front(), progress);
  int asked = kRounds.front().count;
  for (const Round& round : std::span(kRounds).subspan(1)) {
    const bool more = round.first >= kCompared;
    if (more && !enough) break;
    const double most = std::max_element(grades.begin(), grades.end(), [](const Grade& a, const Grade& b) {
                          return a.answers < b.answers;
                        })->answers;
    // Who lost a question of a kind keeps at most a half of both: of three kinds 5 in 6, which is not enough.
    double least = more ? enough->kept : most;
    if (enough && !enough->ranks_rest) least = std::max(least, enough->kept);
    std::vector<std::size_t> leaders;
    std::vector<plan::Plan> some;
    for (std::size_t i = 0; i < grades.size(); ++i) {
      if (grades[i].answers < least) continue;
      leaders.push_back(i);
      some.push_back(plans[i]);
    }
    // One that leads alone is the choice.
    if (leaders.empty() || (!enough && leaders.size() == 1)) break;
    const std::vector<Grade> next = round_of(engine, study, some, round, progress);
    for (std::size_t i = 0; i < leaders.size(); ++i) {
      Grade& grade = grades[leaders[i]];
      grade.answers = rounded((grade.answers * asked + next[i].answers * round.count) / (asked + round.count));
      if (!more)
        grade.divergence = (grade.divergence * asked + next[i].divergence * round.count) / (asked + round.count);
    }
    asked += round.count;
  }
  return grades;
}

double captured_by(const Similarity& wide, int select, int again) {
  const plan::ModelShape& shape = wide.shape();
  double sum = 0;
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const bool all = layer <= select || layer == again;
      sum += all ? wide.needle_share(layer, head) : wide.captured(layer < again ? select : again, layer, head, head);
    }
  }
  return sum;
}

Choice choose_tidal(engine::Engine& engine, const Study& study, Progress& progress) {
  const LayerMethod method{"tidal", [](plan::Profile& found, const std::vector<int>& layers) {
                             found.tidal = plan::TidalProfile{layers.front()};
                           }};
  return decide(engine, study, ranked_layers(study, kSelect, kLayers), method, progress);
}

Choice choose_lessismore(engine::Engine& engine, const Study& study, Progress& progress) {
  const LayerMethod method{"lessismore", [](plan::Profile& found, const std::vector<int>& layers) {
                             found.lessismore = plan::LessIsMoreProfile{layers.front()};
                           }};
  const int select = std::max(kSelect, policies::scaled_layer(2, engine.shape().layers));
  return decide(engine, study, ranked_layers(study, select, kOthers), method, progress);
}

Choice choose_omnikv(engine::Engine& engine, const Study& study, Progress& progress) {
  const LayerMethod method{"omnikv", [](plan::Profile& found, const std::vector<int>& layers) {
                             found.omnikv = plan::OmniKvProfile{layers};
                           }};
  const std::vector<Candidate> ranked = ranked_layers(study, kSelect, kOthers);
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < ranked.size(); ++i) {
    for (std::size_t j = i + 1; j < ranked.size(); ++j) {
      std::vector<int> filters{kSelect, ranked[i].layers.front(), ranked[j].layers.front()};
      std::sort(filters.begin(), filters.end());
      candidates.push_back({filters, 0, {}});
    }
  }
  return decide(engine, study, std::move(candidates), method, progress);
}

AnchorChoice choose_kascade(engine::Engine& engine, const Study& study, Progress& progress) {
  const plan::ModelShape shape = engine.shape();
  const std::vector<Gains> tables{gains_of(study.near, study.wide, study.importance, {}),
                                  gains_of(study.near, study.wide, study.importance, {.needles = 1})};
  std::vector<std::vector<double>> by_layer;
  for (const Gains& gains : tables) by_layer.push_back(gains.by_layer());
  AnchorChoice choice;
  for (int count = 1; count <= shape.layers; ++count) {
    choice.by_count.push_back(best_anchors(by_layer.front(), shape.layers, count));
  }
  const std::vector<double> objective = objectives(by_layer.front(), shape.layers, choice.by_count);
  std::vector<double> similarity = study.near.by_layer();
  constexpr double kDigits = 1e4;  // more say nothing
  for (double& value : similarity) value = std::clamp(std::round(value * kDigits) / kDigits, 0.0, 1.0);
  const std::map<std::string, std::string> dense{{"prefill", "dense"}}, own;
  const auto plan_of = [&](const plan::KascadeProfile& part, const std::map<std::string, std::string>& extra) {
    plan::Profile found = plan::empty_profile(shape);
    found.kascade = part;
    return plan_by(found, "kascade", study, extra);
  };
  std::optional<AnchorChoice> best;  // by its own prefill, of those that were tried with it
  int checked = 0;
  bool ranks_rest = false;
  const bool own_runs = refusal_of(engine, study, "kascade", own).empty();
  const auto check_own = [&] {
    if (!own_runs) return;
    const plan::Plan plan = plan_of(choice.profile, own);
    choice.own = grades_of(engine, study, {&plan, 1}, name(Task::multikey), progress).front();
  };
  const int most = std::max(1, shape.layers / 2);
  const auto next_of = [](int count) { return count + (count < 6 ? 1 : count < 10 ? 2 : 3); };
  for (int count = std::min(kFewestAnchors, most);; count = next_of(count)) {
    if (count > most) {
      if (best || ranks_rest) break;
      // None keeps enough, so the best of them is looked for.
      ranks_rest = true;
      choice.candidates.clear();
      count = std::min(kFewestAnchors, most);
    }
    bool better = false;
    std::vector<plan::KascadeProfile> profiles;
    std::vector<plan::Plan> plans;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const std::vector<int> anchors = best_anchors(by_layer[i], shape.layers, count);
      profiles.push_back({anchors, head_map(tables[i], anchors), objective, similarity});
      plans.push_back(plan_of(profiles.back(), dense));
    }
    const std::vector<Grade> grades = raced_grades(engine, study, plans, Enough{kKept, ranks_rest}, progress);
    for (std::size_t i = 0; i < grades.size(); ++i) {
      if (choice.candidates.empty() || choice.grade < grades[i]) {
        choice.profile = profiles[i];
        choice.grade = grades[i];
        better = true;
      }
      choice.candidates.push_back({profiles[i].anchors, 0, grades[i]});
    }
    if (!better || choice.grade.answers < kKept) continue;
    check_own();
    if (!best || (own_runs && *best->own < *choice.own)) best = choice;
    if (!own_runs || choice.own->answers >= kKept || ++checked == kChecks) break;
  }
  if (!best) {
    check_own();
    return choice;
  }
  best->candidates = std::move(choice.candidates);
  return *best;
}

HeadChoice choose_heads(engine::Engine& engine, const Study& study, Progress& progress) {
  const plan::ModelShape shape = engine.shape();
  const Gains gains = gains_of(study.near, study.wide, study.importance, {.needles = 1, .reads_all = true});
  const int all = shape.layers * shape.kv_heads;
  HeadChoice choice;
  const auto try_share = [&](double share, bool ranks_rest) {
    const int count = std::clamp(static_cast<int>(std::round(share * all)) - shape.kv_heads, 1, all - shape.kv_heads);
    const std::vector<char> heads = best_heads(gains, count);
    plan::Profile profile = plan::empty_profile(shape);
    profile.roles = plan::RolesProfile{{heads.begin(), heads.end()}};
    const plan::Plan plan = plan_by(profile, "lychee-decode", study);
    const Grade grade = raced_grades(engine, study, {&plan, 1}, Enough{kKept, ranks_rest}, progress).front();
    if (choice.tried++ == 0 || choice.grade < grade) {
      choice.roles = *profile.roles;
      choice.chosen = count + shape.kv_heads;
      choice.grade = grade;
    }
    return choice.grade.answers >= kKept;
  };
  for (const bool ranks_rest : {false, true}) {
    choice.tried = 0;
    if (std::any_of(kHeadShares.begin(), kHeadShares.end(), [&](double share) { return try_share(share, ranks_rest); }))
      break;
  }
  return choice;
}

}  // namespace glimpse::calibrate
