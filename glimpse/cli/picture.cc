#include "glimpse/cli/picture.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "glimpse/base/error.h"
#include "glimpse/cli/position_list.h"

namespace glimpse::cli {

/// picture/page.html, picture/profile.html and picture/scoreboard.html with style and script inside; made by
/// cmake/embed.cmake.
extern const std::string_view kPicturePage, kProfilePage, kScoreboardPage;

namespace {

using Json = nlohmann::ordered_json;

/// As `glimpse plan` has them.
char letter(plan::RoleKind role) {
  constexpr std::string_view kLetters = "DSRW";
  return kLetters[static_cast<std::size_t>(role)];
}

Json step_json(const TraceStep& step) {
  std::string roles;
  Json lists = Json::array(), coverage = Json::array();
  bool known = false;
  for (const TraceHead& head : step.heads) {
    roles += letter(head.role);
    lists.push_back(head.list);
    known = known || head.coverage.has_value();
    coverage.push_back(head.coverage ? Json(std::round(*head.coverage * 1e4) / 1e4) : Json(nullptr));
  }
  return {{"position", step.position},
          {"read", step.bytes_read},
          {"index", step.index_bytes},
          {"dense", step.dense_bytes},
          {"roles", roles},
          {"lists", lists},
          {"coverage", known ? coverage : Json(nullptr)}};
}

Json trace_data(const Trace& trace) {
  Json steps = Json::array(), sizes = Json::array();
  for (const TraceStep& step : trace.steps) steps.push_back(step_json(step));
  std::string bytes;
  for (const std::string& list : trace.lists) {
    sizes.push_back(list.size());
    bytes += list;
  }
  const plan::ModelShape& shape = trace.shape;
  return {{"source", trace.source},
          {"policy", trace.policy},
          {"budget", trace.budget},
          {"model", shape.model_name.empty() ? shape.architecture : shape.model_name},
          {"layers", shape.layers},
          {"heads", shape.heads},
          {"kvHeads", shape.kv_heads},
          {"headDim", shape.head_dim},
          {"kvType", trace.kv_type},
          {"promptTokens", trace.prompt_tokens},
          {"tokens", trace.tokens},
          {"steps", steps},
          {"sizes", sizes},
          {"lists", base64(bytes)}};
}

/// JSON whose texts cannot end the script element that holds it: every < is inside a JSON string.
std::string script_safe(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size() + text.size() / 64);
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string filled(std::string_view source, const Json& data) {
  constexpr std::string_view kMark = "@data@";
  const std::size_t at = source.find(kMark);
  check(at != std::string_view::npos, "the page has a place for its data");
  std::string page(source.substr(0, at));
  page += script_safe(data);
  page += source.substr(at + kMark.size());
  return page;
}

/// What a map with a row for each layer shows: one value for each, [layer, column]; a column is one `head`, as the page
/// calls it.
Json map_json(std::string_view title, std::string_view head, const std::vector<double>& values) {
  return {{"title", title}, {"head", head}, {"values", values}};
}

/// Times of a token: rows of method, budget, fixed_ms, ms_per_1000 and the milliseconds at the length of `kept`.
Json speed_json(const plan::SpeedProfile& speed) {
  Json rows = Json::array();
  const auto add = [&](const std::string& method, const std::string& budget, const plan::TokenTime& time) {
    rows.push_back({method, budget, time.fixed_ms, time.ms_per_1000, time.at(speed.tokens)});
  };
  add("full", "", speed.dense);
  add("verification of " + std::to_string(plan::kVerifiedDrafts) + " drafts", "", speed.verify);
  for (const plan::MethodTime& row : speed.methods) {
    add(plan::row_name(row.method, row.options), row.budget, row.time);
  }
  return {{"processor", speed.processor},
          {"threads", speed.threads},
          {"kvType", speed.kv_type},
          {"tokens", speed.tokens},
          {"rows", rows}};
}

Json profile_data(const plan::Profile& profile) {
  const plan::ModelShape& model = profile.model;
  Json data{{"model", model.model_name.empty() ? model.architecture : model.model_name},
            {"layers", model.layers},
            {"heads", model.heads},
            {"kvHeads", model.kv_heads},
            {"headDim", model.head_dim},
            {"fingerprint", profile.fingerprint ? Json(plan::fingerprint_text(*profile.fingerprint)) : Json(nullptr)},
            {"maps", Json::array()},
            {"chosen", Json::object()},
            {"headMap", Json::array()},
            {"objective", Json::array()},
            {"kept", Json::array()},
            {"speed", profile.speed ? speed_json(*profile.speed) : Json(nullptr)}};
  if (profile.kascade && !profile.kascade->similarity.empty()) {
    data["maps"].push_back(
        map_json("Similarity: the mass of a layer's own sets that it finds in those of an earlier one", "reading layer",
                 profile.kascade->similarity));
  }
  if (profile.retrieval) {
    data["maps"].push_back(map_json("Retrieval scores", "query head", profile.retrieval->scores));
  }
  if (profile.roles) {
    data["maps"].push_back(map_json("Probability of being a retrieval head", "KV head", profile.roles->probability));
  }
  if (profile.budget)
    data["maps"].push_back(map_json("Budgets, of the context", "KV head", shares_of(*profile.budget)));
  if (profile.kascade) {
    data["chosen"]["kascade"] = profile.kascade->anchors;
    data["headMap"] = profile.kascade->head_map;
    data["objective"] = profile.kascade->objective;
  }
  if (profile.tidal) data["chosen"]["tidal"] = {profile.tidal->reselect};
  if (profile.lessismore) data["chosen"]["lessismore"] = {profile.lessismore->reselect};
  if (profile.omnikv) data["chosen"]["omnikv"] = profile.omnikv->filters;
  for (const plan::Kept& row : profile.kept) {
    data["kept"].push_back({plan::row_name(row.method, row.options), row.budget, row.task, row.answers, row.dense,
                            row.divergence, row.coverage, plan::asked_text(row)});
  }
  return data;
}

}  // namespace

std::string picture_page(const Trace& trace) {
  return filled(kPicturePage, trace_data(trace));
}

std::vector<double> shares_of(const plan::BudgetProfile& budgets) {
  std::vector<double> shares;
  for (const int tokens : budgets.tokens) {
    shares.push_back(std::min(1.0, static_cast<double>(tokens) / static_cast<double>(budgets.context)));
  }
  return shares;
}

std::string profile_page(const plan::Profile& profile) {
  return filled(kProfilePage, profile_data(profile));
}

std::string scoreboard_page(std::string_view json) {
  return filled(kScoreboardPage, Json::parse(json));
}

}  // namespace glimpse::cli
