#include "glimpse/cli/inspect_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "glimpse/base/printable.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/picture.h"
#include "glimpse/cli/report.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {
namespace {

/// A character for each tenth from 0 to 1: ' ' below 0.05, '@' from 0.95 on.
constexpr std::string_view kHeat = " .:-=+*oO#@";

/// Layers whose heads all have no heat are counted and left out.
std::string heat_text(std::string_view title, const std::vector<double>& values, int columns) {
  const auto width = static_cast<std::size_t>(columns);
  std::string text = fmt::format("\n{}\nlayer\n", title);
  std::size_t cold = 0;
  for (std::size_t first = 0; first < values.size(); first += width) {
    std::string cells;
    for (std::size_t i = first; i < first + width; ++i) {
      cells += kHeat[static_cast<std::size_t>(std::lround(values[i] * static_cast<double>(kHeat.size() - 1)))];
    }
    if (cells.find_first_not_of(' ') == std::string::npos) {
      ++cold;
    } else {
      text += fmt::format("{:>5}  |{}|\n", first / width, cells);
    }
  }
  if (cold > 0) text += fmt::format("{} layer{} without any from 0.05 on\n", cold, cold == 1 ? " is" : "s are");
  return text + fmt::format("'{}' stands for 0, 0.1, ... 1\n", kHeat);
}

std::string summary(const std::string& path, const plan::Profile& profile) {
  const auto line = [](std::string_view what, const std::string& value) {
    return fmt::format("{:<16}{}\n", what, printable(value));
  };
  std::string text = line("file", path) + line("profile", "of calibration") + line("for", shape_text(profile.model));
  text += line("fingerprint", profile.fingerprint ? plan::fingerprint_text(*profile.fingerprint)
                                                  : "none: any file of a model of this name and shape");
  text += plan::explain(profile);
  if (profile.kascade && !profile.kascade->similarity.empty()) {
    text += heat_text("similarity, a row for each layer whose set is read, a column for each layer that reads it",
                      profile.kascade->similarity, profile.model.layers);
  }
  if (profile.retrieval) {
    text += heat_text("retrieval scores, a column for each query head", profile.retrieval->scores, profile.model.heads);
  }
  if (profile.roles) {
    text += heat_text("probabilities of being a retrieval head, a column for each KV head", profile.roles->probability,
                      profile.model.kv_heads);
  }
  if (profile.budget) {
    text += heat_text("budgets, of the context, a column for each KV head", shares_of(*profile.budget),
                      profile.model.kv_heads);
  }
  return text;
}

}  // namespace

int inspect_profile(const Arguments& arguments, std::string_view json) {
  const plan::Profile profile = parse_of(fmt::format("'{}'", arguments.subject), json,
                                         [](std::string_view text) { return plan::parse_profile(text); });
  if (arguments.html) {
    Output file{std::filesystem::path(*arguments.html)};
    file.write(profile_page(profile));
    file.require_ok();
  }
  print(summary(arguments.subject, profile));
  return kExitOk;
}

}  // namespace glimpse::cli
