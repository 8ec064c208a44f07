// The choices that calibration makes: measured tables narrow the candidates, and what plans answer on forks of the
// prompts decides between them. Pure but for the engine's passes; one thread.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/calibrate/anchors.h"
#include "glimpse/calibrate/study.h"
#include "glimpse/plan/profile.h"
#include "glimpse/policies/policy.h"

namespace glimpse::calibrate {

/// How much of dense attention's answers a plan keeps.
struct Grade {
  double answers = 0;     ///< share of answers that are dense attention's, each kind of task weighing the same
  double divergence = 0;  ///< KL(dense || plan), the mean over trials, prose among them
  friend bool operator<(const Grade& a, const Grade& b) {
    return a.answers != b.answers ? a.answers < b.answers : a.divergence > b.divergence;
  }
};

/// Of each plan: what it gives of the first kCompared questions of every kind of task, and of prose; of one kind alone
/// where `task` names it.
std::vector<Grade> grades_of(engine::Engine& engine, const Study& study, std::span<const plan::Plan> plans,
                             std::string_view task, Progress& progress);
/// How much of the answers is enough, and whether plans that cannot reach it are compared with each other too.
struct Enough {
  double kept = 0;
  bool ranks_rest = true;
};
/// The same in rounds of a question a kind: after each, those go on that lead. Those that keep enough, if that is
/// given, are then asked two questions more. Who is left behind has the grade of what it was asked.
std::vector<Grade> raced_grades(engine::Engine& engine, const Study& study, std::span<const plan::Plan> plans,
                                const std::optional<Enough>& enough, Progress& progress);

/// Why the device does not run the method at the study's budget, whatever a profile says of it, with the cure; empty:
/// it does.
std::string refusal_of(const engine::Engine& engine, const Study& study, std::string_view method,
                       const std::map<std::string, std::string>& extra = {});

struct Candidate {
  std::vector<int> layers;
  double captured = 0;  ///< share of the mass on needles that is read, by the tables; 0 where they do not tell
  Grade grade;
};
struct Choice {
  std::vector<int> layers;  ///< none: the model is too small, or the device does not run the method
  Grade grade;
  std::vector<Candidate> candidates;  ///< those that were tried
};

/// Share of the needle mass that heads read when `select` chooses first and `again` for the layers behind it
/// (TidalDecode); both, and the layers before the first, read everything.
double captured_by(const Similarity& wide, int select, int again);

/// TidalDecode's layer that selects again (appendix A.6), LessIsMore's, OmniKV's filters.
Choice choose_tidal(engine::Engine& engine, const Study& study, Progress& progress);
Choice choose_lessismore(engine::Engine& engine, const Study& study, Progress& progress);
Choice choose_omnikv(engine::Engine& engine, const Study& study, Progress& progress);

struct AnchorChoice {
  plan::KascadeProfile profile;
  Grade grade;
  std::optional<Grade> own;  ///< of the prompts with four keys, read by the plan's own sparse prefill, if it runs
  std::vector<Candidate> candidates;
  std::vector<std::vector<int>> by_count;  ///< the paper's anchors for 1, 2, ... of them, by the programme alone
};
/// The fewest anchors, but no fewer than the paper's five, that keep the answers, also where they read the prompts with
/// four keys sparsely, or else the best of at most half of the layers.
AnchorChoice choose_kascade(engine::Engine& engine, const Study& study, Progress& progress);

struct HeadChoice {
  plan::RolesProfile roles;  ///< 1 for a head that chooses, else 0
  int chosen = 0;            ///< heads that choose, those of layer 0 among them
  Grade grade;
  int tried = 0;
};
/// LycheeDecode's heads by `best_heads`: the fewest of an eighth to a half of the KV heads that keep the answers. In
/// place of its training.
HeadChoice choose_heads(engine::Engine& engine, const Study& study, Progress& progress);

}  // namespace glimpse::calibrate
