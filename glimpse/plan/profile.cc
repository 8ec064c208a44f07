#include "glimpse/plan/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "glimpse/base/error.h"
#include "glimpse/plan/checks.h"
#include "glimpse/plan/profile_checks.h"

namespace glimpse::plan {
namespace {

constexpr std::string_view kParts = "kascade, tidal, retrieval, roles, lessismore, omnikv, budget, kept or speed";

void check_range(std::string_view where, std::string_view what, int value, int low, int high) {
  if (value < low || value > high) refuse_profile(where, "{} {} is outside {} to {}", what, value, low, high);
}

void check_size(std::string_view where, std::size_t given, const ModelShape& model, int columns) {
  const auto needed = static_cast<std::size_t>(model.layers) * static_cast<std::size_t>(columns);
  if (given != needed) {
    refuse_profile(where, "{} values, {} needed: one for each of {} layers and {} heads", given, needed, model.layers,
                   columns);
  }
}

void check_objective(const std::vector<double>& objective, const ModelShape& model) {
  if (objective.size() > static_cast<std::size_t>(model.layers)) {
    refuse_profile("kascade.objective", "{} values; give one for each number of anchors, {} at most", objective.size(),
                   model.layers);
  }
  for (std::size_t i = 0; i < objective.size(); ++i) {  // NaN fails the comparison too
    if (!(objective[i] >= 0 && objective[i] <= 1)) {
      refuse_profile("kascade.objective", "of {} anchors {} is outside 0 to 1", i + 1, objective[i]);
    }
  }
}

void check_similarity(const std::vector<double>& similarity, const ModelShape& model) {
  if (similarity.empty()) return;
  constexpr std::string_view kWhere = "kascade.similarity";
  const auto layers = static_cast<std::size_t>(model.layers);
  if (similarity.size() != layers * layers) {
    refuse_profile(kWhere, "{} values, {} needed: one for each pair of {} layers", similarity.size(), layers * layers,
                   model.layers);
  }
  for (std::size_t i = 0; i < similarity.size(); ++i) {
    const std::size_t a = i / layers, b = i % layers;
    const double most = a > b ? 0 : 1;
    if (similarity[i] >= 0 && similarity[i] <= most) continue;  // NaN fails the comparison too
    refuse_profile(kWhere, "layer {} with the set of layer {}: {} is outside 0 to {}", b, a, similarity[i], most);
  }
}

// Shares of something: NaN fails the comparison too.
void check_shares(std::string_view where, const std::vector<double>& values, int columns) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] <= 1) continue;
    refuse_profile(where, "layer {}, head {}: {} is outside 0 to 1", i / static_cast<std::size_t>(columns),
                   i % static_cast<std::size_t>(columns), values[i]);
  }
}

void check_layers(std::string_view where, const std::vector<int>& layers, const ModelShape& model) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    check_range(where, "layer", layers[i], 0, model.layers - 1);
    if (i > 0 && layers[i] <= layers[i - 1]) {
      refuse_profile(where, "layer {} follows layer {}; write them in rising order, each once", layers[i],
                     layers[i - 1]);
    }
  }
}

void check_kascade(const Profile& profile) {
  const ModelShape& model = profile.model;
  const std::vector<int>& anchors = profile.kascade->anchors;
  if (anchors.empty() || anchors[0] != 0) refuse_profile("kascade.anchors", "the first anchor must be layer 0");
  check_layers("kascade.anchors", anchors, model);
  check_size("kascade.head_map", profile.kascade->head_map.size(), model, model.kv_heads);
  check_objective(profile.kascade->objective, model);
  check_similarity(profile.kascade->similarity, model);
  for (int layer = 0; layer < model.layers; ++layer) {
    const bool anchor = std::binary_search(anchors.begin(), anchors.end(), layer);
    const std::string where = fmt::format("kascade.head_map, layer {}", layer);
    for (int head = 0; head < model.kv_heads; ++head) {
      const int mapped = profile.mapped_head(layer, head);
      check_range(where, "KV head", mapped, 0, model.kv_heads - 1);
      if (anchor && mapped != head) {
        refuse_profile(where, "an anchor reads its own sets, but head {} is mapped to {}", head, mapped);
      }
    }
  }
}

void check_budgets(const Profile& profile) {
  const BudgetProfile& part = *profile.budget;
  constexpr std::string_view kWhere = "budget";
  if (part.context < 1 || part.context > kMaxTokens) {
    refuse_profile(kWhere, "context {} is outside 1 to {}", part.context, kMaxTokens);
  }
  if (!(part.coverage > 0 && part.coverage < 1)) {  // NaN fails the comparison too
    refuse_profile(kWhere, "coverage {} is outside 0 to 1, which are no targets", part.coverage);
  }
  if (part.steps && !(*part.steps > 0 && *part.steps <= 1)) {
    refuse_profile(kWhere, "steps {} is outside 0 to 1; give a share over 0", *part.steps);
  }
  if (part.steps && part.together) refuse_profile(kWhere, "steps beside together, which is a mean; leave one out");
  if (part.divergence && !(*part.divergence > 0 && std::isfinite(*part.divergence))) {
    refuse_profile(kWhere, "divergence {}; give a number of nats over 0", *part.divergence);
  }
  check_size("budget.tokens", part.tokens.size(), profile.model, profile.model.kv_heads);
  for (std::size_t i = 0; i < part.tokens.size(); ++i) {
    const std::size_t heads = static_cast<std::size_t>(profile.model.kv_heads);
    check_range(fmt::format("budget.tokens, layer {}, head {}", i / heads, i % heads), "budget", part.tokens[i], 1,
                kMaxTokens);
  }
}

constexpr int kMostAsked = 1'000'000;

void check_kept(const std::vector<Kept>& kept) {
  if (kept.size() > kMaxKept) refuse_profile("kept", "{} rows; give {} at most", kept.size(), kMaxKept);
  std::set<std::tuple<std::string_view, std::string_view, std::string_view, std::string_view>> seen;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const Kept& row = kept[i];
    const std::string where = fmt::format("kept[{}]", i);
    check_row_name(where, row.method, row.budget, row.options);
    check_name(where, "task", row.task);
    const auto share = [&](std::string_view what, double value) {  // NaN fails the comparison too
      if (!(value >= 0 && value <= 1)) refuse_profile(where, "{} {} is outside 0 to 1", what, value);
    };
    share("answers", row.answers);
    share("dense", row.dense);
    share("coverage", row.coverage);
    if (row.agreement) share("agreement", *row.agreement);
    if (row.asked && (*row.asked < 1 || *row.asked > kMostAsked)) {
      refuse_profile(where, "asked {}; give 1 to {}", *row.asked, kMostAsked);
    }
    if (row.left_out && !row.asked) refuse_profile(where, "left_out without asked; give that too");
    if (!(row.divergence >= 0 && std::isfinite(row.divergence))) {
      refuse_profile(where, "divergence {}; give a number of nats, 0 or more", row.divergence);
    }
    if (!seen.emplace(row.method, row.options, row.budget, row.task).second) {
      refuse_profile(where, "{} at {} on {} is given twice", row.method, row.budget, row.task);
    }
  }
}

std::string name_of(const Kept& row) {
  return row_name(row.method, row.options);
}

bool keeps_answers(const Kept& row) {
  return !has_answers(row.task) || row.answers >= kKeptAnswers * row.dense;
}

/// What a kind of task asks for.
std::string_view kind_in_words(std::string_view task) {
  if (task == "single") return "finding a number";
  if (task == "multikey") return "finding one of several keys";
  if (task == "vt") return "following variables";
  if (task == "passkey") return "copying passkeys";
  return task;
}

/// "not for    copying passkeys: tidal 512, tidal 10%", a line for each kind of task that some method loses.
std::string not_for_lines(const std::vector<Kept>& kept) {
  std::vector<std::string_view> kinds;
  std::map<std::string_view, std::vector<std::string>> losers;  // by kind
  for (const Kept& row : kept) {
    if (keeps_answers(row)) continue;
    const std::string_view kind = kind_in_words(row.task);
    if (!losers.contains(kind)) kinds.push_back(kind);
    losers[kind].push_back(fmt::format("{} {}", name_of(row), row.budget));
  }
  std::string text;
  for (const std::string_view kind : kinds) {
    text += fmt::format("{:<11}{}: {}\n", kind == kinds.front() ? "not for" : "", kind, fmt::join(losers[kind], ", "));
  }
  return text;
}

std::string kept_table(const std::vector<Kept>& kept) {
  std::size_t method = 6, budget = 6, task = 4;
  for (const Kept& row : kept) {
    method = std::max(method, name_of(row).size());
    budget = std::max(budget, row.budget.size());
    task = std::max(task, row.task.size());
  }
  const auto line = [&](std::string_view first, const auto&... cells) {
    return fmt::format("{:<11}{:<{}}  {:<{}}  {:<{}}  {:>8}  {:>8}  {:>10}  {:>8}  {:>9}  {}\n", first, cells...);
  };
  std::string text = line("kept", "method", method, "budget", budget, "task", task, "answers", "dense", "divergence",
                          "coverage", "agreement", "asked");
  for (const Kept& row : kept) {
    text += line("", name_of(row), method, row.budget, budget, row.task, task,
                 fmt::format("{:.1f} %", 100 * row.answers), fmt::format("{:.1f} %", 100 * row.dense),
                 fmt::format("{:.4f}", row.divergence), fmt::format("{:.4f}", row.coverage),
                 row.agreement ? fmt::format("{:.1f} %", 100 * *row.agreement) : std::string("-"),
                 row.asked ? asked_text(row) : std::string("-"));
  }
  return text + not_for_lines(kept);
}

std::string explain(const BudgetProfile& part) {
  const auto [least, most] = std::minmax_element(part.tokens.begin(), part.tokens.end());
  const double sum = std::accumulate(part.tokens.begin(), part.tokens.end(), 0.0);
  return fmt::format(
      "budget     {} to {} of {} tokens a KV head, {:.0f} on average: they hold {:.4g} % of its mass {}{}\n", *least,
      *most, part.context, sum / static_cast<double>(part.tokens.size()), 100 * part.coverage,
      part.together ? "on average of steps and heads"
      : part.steps  ? fmt::format("in {:g} % of the steps", 100 * *part.steps)
                    : "on average",
      part.divergence ? fmt::format("; for a KL of {:g}", *part.divergence) : "");
}

std::string strongest(const std::vector<double>& values, int columns) {
  std::vector<std::size_t> order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  order.resize(std::min<std::size_t>(order.size(), 8));
  std::vector<std::string> words;
  for (const std::size_t i : order) {
    words.push_back(fmt::format("{}:{} {:.2f}", i / static_cast<std::size_t>(columns),
                                i % static_cast<std::size_t>(columns), values[i]));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

namespace {

/// That a profile holds times of, beside those of `speed`.
constexpr std::size_t kMostMachines = 16;

void check_elsewhere(const Profile& profile) {
  const std::vector<SpeedProfile>& all = profile.elsewhere;
  if (all.empty()) return;
  if (!profile.speed) refuse_profile("elsewhere", "times of other machines without speed; give that too");
  if (all.size() > kMostMachines)
    refuse_profile("elsewhere", "{} machines; give {} at most", all.size(), kMostMachines);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string where = fmt::format("elsewhere[{}]", i);
    validate(all[i], where);
    if (all[i].tokens != profile.speed->tokens) {
      refuse_profile(where, "tokens {}; give {} as in speed", all[i].tokens, profile.speed->tokens);
    }
    if (speed_on(profile, all[i].machine()) == &all[i]) continue;
    refuse_profile(where, "'{}' is given twice", all[i].processor);
  }
}

}  // namespace

std::string row_name(std::string_view method, std::string_view options) {
  return fmt::format("{}{}{}", method, options.empty() ? "" : ",", options);
}

std::string asked_text(const Kept& row) {
  if (!row.asked) return "";
  return fmt::format("{}{}", *row.asked, row.left_out ? ", left out" : "");
}

std::string not_for(std::span<const Kept* const> rows) {
  std::vector<std::string_view> kinds;
  for (const Kept* row : rows) {
    if (!keeps_answers(*row)) kinds.push_back(kind_in_words(row->task));
  }
  return fmt::format("{}", fmt::join(kinds, ", "));
}

bool Profile::has(std::string_view part) const {
  return (part == "kascade" && kascade) || (part == "tidal" && tidal) || (part == "retrieval" && retrieval) ||
         (part == "roles" && roles) || (part == "lessismore" && lessismore) || (part == "omnikv" && omnikv) ||
         (part == "budget" && budget) || (part == "kept" && !kept.empty()) || (part == "speed" && speed);
}

void validate(const Profile& profile) {
  const ModelShape& model = profile.model;
  validate_shape(model);
  if (model.context != 0) refuse_profile("model", "context = {}; a profile holds for any, give 0", model.context);
  if (!profile.kascade && !profile.tidal && !profile.retrieval && !profile.roles && !profile.lessismore &&
      !profile.omnikv && !profile.budget && profile.kept.empty() && !profile.speed) {
    refuse_profile("parts", "none; give {}", kParts);
  }
  if (profile.kascade) check_kascade(profile);
  if (profile.tidal) check_range("tidal.reselect", "layer", profile.tidal->reselect, 1, model.layers - 1);
  if (profile.retrieval) {
    check_size("retrieval.scores", profile.retrieval->scores.size(), model, model.heads);
    check_shares("retrieval.scores", profile.retrieval->scores, model.heads);
  }
  if (profile.roles) {
    check_size("roles.probability", profile.roles->probability.size(), model, model.kv_heads);
    check_shares("roles.probability", profile.roles->probability, model.kv_heads);
  }
  if (profile.lessismore) {
    check_range("lessismore.reselect", "layer", profile.lessismore->reselect, 1, model.layers - 1);
  }
  if (profile.omnikv) {
    if (profile.omnikv->filters.empty()) refuse_profile("omnikv.filters", "none; give at least one layer");
    check_layers("omnikv.filters", profile.omnikv->filters, model);
  }
  if (profile.budget) check_budgets(profile);
  check_kept(profile.kept);
  if (profile.speed) validate(*profile.speed);
  check_elsewhere(profile);
}

const SpeedProfile* speed_on(const Profile& profile, const SpeedMachine& machine) {
  if (profile.speed && profile.speed->machine() == machine) return &*profile.speed;
  const auto found = std::find_if(profile.elsewhere.begin(), profile.elsewhere.end(),
                                  [&](const SpeedProfile& speed) { return speed.machine() == machine; });
  return found == profile.elsewhere.end() ? nullptr : &*found;
}

void keep_elsewhere(Profile& profile, const Profile& other) {
  if (!profile.speed) return;
  const auto keep = [&](const SpeedProfile& speed) {
    if (speed.tokens != profile.speed->tokens || speed_on(profile, speed.machine()) != nullptr) return;
    if (profile.elsewhere.size() < kMostMachines) profile.elsewhere.push_back(speed);
  };
  if (other.speed) keep(*other.speed);
  for (const SpeedProfile& speed : other.elsewhere) keep(speed);
}

void validate_for(const Profile& profile, const ModelShape& shape, const std::optional<std::uint64_t>& fingerprint) {
  validate(profile);
  ModelShape mine = shape;
  mine.context = 0;
  if (profile.model == mine) {
    if (!fingerprint || !profile.fingerprint || *fingerprint == *profile.fingerprint) return;
    refuse_profile("fingerprint", "made for the model file {}, but this one is {}; calibrate this model",
                   fingerprint_text(*profile.fingerprint), fingerprint_text(*fingerprint));
  }
  const auto words = [](const ModelShape& m) {
    return fmt::format("{} '{}' of {} layers, {} query and {} KV heads of {}", m.architecture, m.model_name, m.layers,
                       m.heads, m.kv_heads, m.head_dim);
  };
  refuse_profile("model", "made for {}, but the model is {}; calibrate this model", words(profile.model), words(mine));
}

std::string fingerprint_text(std::uint64_t fingerprint) {
  return fmt::format("{:016x}", fingerprint);
}

std::string explain(const Profile& profile) {
  validate(profile);
  const ModelShape& model = profile.model;
  std::string text;
  if (profile.kascade) {
    int moved = 0;
    for (int layer = 0; layer < model.layers; ++layer) {
      for (int head = 0; head < model.kv_heads; ++head) moved += profile.mapped_head(layer, head) != head ? 1 : 0;
    }
    text += fmt::format("kascade    anchors {}; {} of {} heads read another head's set\n",
                        fmt::join(profile.kascade->anchors, ", "), moved, model.layers * model.kv_heads);
    const std::vector<double>& objective = profile.kascade->objective;
    if (!objective.empty()) {
      text += fmt::format("objective  of 1, 2, ... anchors: {:.3f}\n", fmt::join(objective, ", "));
    }
  }
  if (profile.tidal) text += fmt::format("tidal      layer {} selects again\n", profile.tidal->reselect);
  if (profile.lessismore) text += fmt::format("lessismore layer {} selects again\n", profile.lessismore->reselect);
  if (profile.omnikv) text += fmt::format("omnikv     filter layers {}\n", fmt::join(profile.omnikv->filters, ", "));
  if (profile.budget) text += explain(*profile.budget);
  if (profile.retrieval) {
    text += fmt::format("retrieval  strongest query heads, layer:head score: {}\n",
                        strongest(profile.retrieval->scores, model.heads));
  }
  if (profile.roles) {
    const auto& p = profile.roles->probability;
    text += fmt::format("roles      {} of {} KV heads above 0.5; strongest: {}\n",
                        std::count_if(p.begin(), p.end(), [](double x) { return x > 0.5; }), p.size(),
                        strongest(p, model.kv_heads));
  }
  if (!profile.kept.empty()) text += kept_table(profile.kept);
  if (profile.speed) text += explain(*profile.speed);
  for (const SpeedProfile& speed : profile.elsewhere) text += explain(speed);
  return text;
}

Profile empty_profile(const ModelShape& shape) {
  Profile profile{.model = shape};
  profile.model.context = 0;
  return profile;
}

void merge(Profile& into, const Profile& found) {
  const auto take = [](auto& part, const auto& from) {
    if (from) part = from;
  };
  take(into.kascade, found.kascade);
  take(into.tidal, found.tidal);
  take(into.lessismore, found.lessismore);
  take(into.omnikv, found.omnikv);
  take(into.retrieval, found.retrieval);
  take(into.roles, found.roles);
  take(into.budget, found.budget);
  std::erase_if(into.kept, [&](const Kept& row) {
    return std::any_of(found.kept.begin(), found.kept.end(),
                       [&](const Kept& other) { return other.method == row.method; });
  });
  into.kept.insert(into.kept.end(), found.kept.begin(), found.kept.end());
  if (!found.speed) return;
  std::vector<MethodTime> others;
  if (const SpeedProfile* there = speed_on(into, found.speed->machine())) {
    if (there->tokens == found.speed->tokens) others = there->methods;
  }
  const Profile before{.speed = std::exchange(into.speed, found.speed), .elsewhere = std::exchange(into.elsewhere, {})};
  keep_elsewhere(into, before);
  for (MethodTime& row : others) {
    const auto same = [&](const MethodTime& other) { return other.method == row.method; };
    if (std::none_of(found.speed->methods.begin(), found.speed->methods.end(), same)) {
      into.speed->methods.push_back(std::move(row));
    }
  }
}

}  // namespace glimpse::plan
