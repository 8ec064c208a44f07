#include "glimpse/cli/calibration_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace glimpse::cli {
namespace {

std::string grade_text(const calibrate::Grade& grade) {
  return fmt::format("keeps {:.0f} % of dense attention's answers, KL {:.4f}", 100 * grade.answers, grade.divergence);
}

std::string layers_line(std::string_view method, std::string_view what, const calibrate::Choice& choice) {
  return fmt::format("{:<14}{} {}: {} ({} tried)\n", method, what, fmt::join(choice.layers, ", "),
                     grade_text(choice.grade), choice.candidates.size());
}

std::string percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

/// Milliseconds of a token of the row, none: of dense attention, where the answers were measured; empty: not timed.
std::string time_of(const plan::Profile& profile, const plan::Kept* row) {
  if (!profile.speed) return "";
  const plan::SpeedProfile& speed = *profile.speed;
  const auto text = [&](const plan::TokenTime& time) { return fmt::format("{:.1f}", time.at(speed.tokens)); };
  if (row == nullptr) return text(speed.dense);
  for (const plan::MethodTime& timed : speed.methods) {
    if (timed.method == row->method && timed.budget == row->budget && timed.options == row->options) {
      return text(timed.time);
    }
  }
  return "";
}

/// Questions of all kinds of task.
std::string asked_all(int asked, bool left_out) {
  return asked == 0 ? "" : fmt::format("{}{}", asked, left_out ? ", left out" : "");
}

}  // namespace

std::string choices_text(const calibrate::Calibration& found) {
  std::string text = fmt::format("prompts of {} tokens; layers decided at {}\n", found.length, found.budget);
  if (found.tidal) text += layers_line("tidal", "selects again in layer", *found.tidal);
  if (found.lessismore) text += layers_line("lessismore", "selects again in layer", *found.lessismore);
  if (found.omnikv) text += layers_line("omnikv", "filters in layers", *found.omnikv);
  if (found.kascade) {
    const std::optional<calibrate::Grade>& own = found.kascade->own;
    text += fmt::format("{:<14}anchors in layers {}: {} ({} tried); {}\n", "kascade",
                        fmt::join(found.kascade->profile.anchors, ", "), grade_text(found.kascade->grade),
                        found.kascade->candidates.size(),
                        own ? fmt::format("{:.0f} % with prompts of four keys read sparsely", 100 * own->answers)
                            : "not tried with prompts read sparsely");
  }
  if (found.heads) {
    text += fmt::format("{:<14}{} KV heads choose: {} ({} tried)\n", "lychee-decode", found.heads->chosen,
                        grade_text(found.heads->grade), found.heads->tried);
  }
  for (const calibrate::LeftOut& out : found.left_out) text += fmt::format("{:<14}left out: {}\n", out.method, out.why);
  if (found.profile.retrieval) {
    text += plan::explain({.model = found.profile.model, .retrieval = found.profile.retrieval});
  }
  return text;
}

std::string candidates_text(const calibrate::Calibration& found) {
  std::string text;
  const auto add = [&](std::string_view method, const std::vector<calibrate::Candidate>& candidates) {
    for (const calibrate::Candidate& candidate : candidates) {
      text += fmt::format("| {} | {} | {} | {} | {:.4f} |\n", method, fmt::join(candidate.layers, ", "),
                          candidate.captured > 0 ? percent(candidate.captured) : "", percent(candidate.grade.answers),
                          candidate.grade.divergence);
    }
  };
  if (found.tidal) add("tidal", found.tidal->candidates);
  if (found.lessismore) add("lessismore", found.lessismore->candidates);
  if (found.omnikv) add("omnikv", found.omnikv->candidates);
  if (found.kascade) add("kascade", found.kascade->candidates);
  if (!text.empty()) {
    text =
        "\n| tried | layers | needle mass read | answers kept | KL to dense |\n| --- | --- | ---: | ---: | ---: |\n" +
        text;
  }
  if (!found.kascade) return text;
  text += "\n| anchors | by similarity and importance alone |\n| ---: | --- |\n";
  for (std::size_t i = 1; i < found.kascade->by_count.size() / 2; ++i) {
    text += fmt::format("| {} | {} |\n", i + 1, fmt::join(found.kascade->by_count[i], ", "));
  }
  return text;
}

std::string budgets_text(const calibrate::BudgetCalibration& found) {
  const plan::BudgetProfile& budgets = *found.profile.budget;
  const auto row = [](std::string_view what, const calibrate::BudgetKept& kept) {
    return fmt::format("| {} | {:.0f} | {:.4f} | {:.3f} | {} |\n", what, kept.tokens, kept.divergence, kept.coverage,
                       percent(kept.agreement));
  };
  const auto name = [](const calibrate::BudgetKept& kept) {
    return fmt::format("{:.2f} % of the mass", 100 * kept.asked);
  };
  std::string text = fmt::format("prompts of {} tokens\n", budgets.context) +
                     plan::explain(plan::Profile{.model = found.profile.model, .budget = found.profile.budget}) +
                     "\n| tried on other prompts | tokens | KL to dense | coverage | agreement |\n"
                     "| --- | ---: | ---: | ---: | ---: |\n";
  for (const calibrate::BudgetKept& tried : found.tried) text += row(name(tried), tried);
  text += row("the profile: " + name(found.kept), found.kept);
  return text + row("the same for all heads", found.same);
}

std::string table_text(const plan::Profile& profile) {
  const std::vector<plan::Kept>& rows = profile.kept;
  std::vector<std::string> tasks;
  for (const plan::Kept& row : rows) {
    if (plan::has_answers(row.task) && std::find(tasks.begin(), tasks.end(), row.task) == tasks.end())
      tasks.push_back(row.task);
  }
  std::string text = "| method | budget |", line = "| --- | ---: |", dense = "| full | |";
  for (const std::string& task : tasks) {
    text += fmt::format(" {} |", task);
    line += " ---: |";
    // Of the row that was asked the most.
    const plan::Kept* most = nullptr;
    for (const plan::Kept& row : rows) {
      if (row.task == task && (most == nullptr || row.asked > most->asked)) most = &row;
    }
    dense += fmt::format(" {} |", percent(most->dense));
  }
  text += " asked | KL to dense | of qa | of prose | coverage | agreement | ms a token | not for |\n" + line +
          " ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n" + dense +
          fmt::format(" | 0 | 0 | 0 | 1 | 100 % | {} | |\n", time_of(profile, nullptr));
  for (std::size_t i = 0; i < rows.size();) {
    std::map<std::string, plan::Kept> of;  // of one method at one budget and with the same options, by task
    const std::size_t first = i;
    double divergence = 0, coverage = 0, agreement = 0;
    int asked = 0;
    std::vector<const plan::Kept*> measured;
    const auto same = [&](const plan::Kept& row) {
      return row.method == rows[first].method && row.budget == rows[first].budget && row.options == rows[first].options;
    };
    for (; i < rows.size() && same(rows[i]); ++i) {
      of.emplace(rows[i].task, rows[i]);
      measured.push_back(&rows[i]);
      coverage += rows[i].coverage;
      agreement += rows[i].agreement.value_or(0);
      if (!plan::has_answers(rows[i].task)) continue;
      divergence += rows[i].divergence;
      asked += rows[i].asked.value_or(0);
    }
    text += fmt::format("| {} | {} |", plan::row_name(rows[first].method, rows[first].options), rows[first].budget);
    for (const std::string& task : tasks)
      text += of.contains(task) ? fmt::format(" {} |", percent(of[task].answers)) : " |";
    const auto kinds = static_cast<double>(i - first);
    const auto found = of.find(std::string(plan::kFactsTask));
    const std::string facts = found == of.end() ? "" : fmt::format("{:.4f}", found->second.divergence);
    text += fmt::format(
        " {} | {:.4f} | {} | {:.4f} | {:.3f} | {} | {} | {} |\n", asked_all(asked, rows[first].left_out),
        divergence / static_cast<double>(std::max<std::size_t>(tasks.size(), 1)), facts, of["prose"].divergence,
        coverage / kinds, percent(agreement / kinds), time_of(profile, &rows[first]), plan::not_for(measured));
  }
  return text;
}

}  // namespace glimpse::cli
