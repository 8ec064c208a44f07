// Profiles as JSON, and back.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "glimpse/base/printable.h"
#include "glimpse/plan/checks.h"
#include "glimpse/plan/json_reader.h"
#include "glimpse/plan/profile.h"

namespace glimpse::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::string_view kWhat = "profile JSON";
constexpr std::string_view kKey = "glimpse_profile";

template <class T>
Json rows_json(const std::vector<T>& values, int columns) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % static_cast<std::size_t>(columns) == 0) rows.push_back(Json::array());
    rows.back().push_back(values[i]);
  }
  return rows;
}

Json kept_json(const Kept& row) {
  Json json{{"method", row.method}, {"budget", row.budget},         {"task", row.task},        {"answers", row.answers},
            {"dense", row.dense},   {"divergence", row.divergence}, {"coverage", row.coverage}};
  if (row.agreement) json["agreement"] = *row.agreement;
  if (!row.options.empty()) json["options"] = row.options;
  if (row.asked) json["asked"] = *row.asked;
  if (row.left_out) json["left_out"] = true;
  return json;
}

void add_time(Json& json, const TokenTime& time) {
  json["fixed_ms"] = time.fixed_ms;
  json["ms_per_1000"] = time.ms_per_1000;
}

Json speed_json(const SpeedProfile& speed) {
  Json json{{"processor", speed.processor}, {"threads", speed.threads}, {"kv_type", speed.kv_type}};
  json["tokens"] = speed.tokens;
  add_time(json["dense"], speed.dense);
  add_time(json["verify"], speed.verify);
  json["methods"] = Json::array();
  for (const MethodTime& row : speed.methods) {
    Json one{{"method", row.method}, {"budget", row.budget}};
    if (!row.options.empty()) one["options"] = row.options;
    add_time(one, row.time);
    json["methods"].push_back(std::move(one));
  }
  return json;
}

// [layers][columns] under `key`, flattened; `read` takes one value and its path. A column is for one of `what`.
template <class T, class Read>
std::vector<T> read_rows(JsonObject& object, std::string_view key, const ModelShape& model, int columns, Read&& read,
                         std::string_view what = "heads") {
  const std::string path = object.path_of(key);
  const JsonArray& rows = object.need_array(key);
  if (rows.size() != static_cast<std::size_t>(model.layers)) {
    object.refuse(path, fmt::format("{} rows; give one for each of {} layers", rows.size(), model.layers));
  }
  std::vector<T> values;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    const auto* row = std::get_if<JsonArray>(&rows[i].value);
    if (row == nullptr) object.refuse(at, fmt::format("expected an array, found {}", rows[i].type_name()));
    if (row->size() != static_cast<std::size_t>(columns)) {
      object.refuse(at, fmt::format("{} values; give one for each of {} {}", row->size(), columns, what));
    }
    for (std::size_t j = 0; j < row->size(); ++j) values.push_back(read((*row)[j], fmt::format("{}[{}]", at, j)));
  }
  return values;
}

ModelShape read_model(JsonObject object) {
  const ModelShape model = read_model_keys(object);
  object.finish();
  validate_shape(model);
  return model;
}

KascadeProfile read_kascade(JsonObject object, const ModelShape& model) {
  KascadeProfile part;
  object.need("anchors");
  part.anchors = object.integers("anchors", kMaxLayers);
  part.head_map = read_rows<int>(object, "head_map", model, model.kv_heads,
                                 [&](const JsonValue& v, const std::string& at) { return object.integer_of(v, at); });
  if (const JsonArray* objective = object.array("objective")) {
    for (const JsonValue& value : *objective) {
      part.objective.push_back(
          object.number_of(value, fmt::format("{}[{}]", object.path_of("objective"), part.objective.size())));
    }
  }
  if (object.find("similarity") != nullptr) {
    const auto number = [&](const JsonValue& v, const std::string& at) { return object.number_of(v, at); };
    part.similarity = read_rows<double>(object, "similarity", model, model.layers, number, "layers");
  }
  object.finish();
  return part;
}

std::uint64_t read_fingerprint(JsonObject& object) {
  const std::string text = object.text("fingerprint");
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || fingerprint_text(value) != text) {
    object.refuse(object.path_of("fingerprint"),
                  fmt::format("'{}' is none; give 16 digits of base 16, in small letters", excerpt(text)));
  }
  return value;
}

Json budget_json(const BudgetProfile& part, int columns) {
  Json json{{"context", part.context}, {"coverage", part.coverage}};
  if (part.steps) json["steps"] = *part.steps;
  if (part.together) json["together"] = true;
  if (part.divergence) json["divergence"] = *part.divergence;
  json["tokens"] = rows_json(part.tokens, columns);
  return json;
}

BudgetProfile read_budgets(JsonObject object, const ModelShape& model) {
  BudgetProfile part;
  part.context = object.integer("context", std::nullopt);
  object.need("coverage");
  part.coverage = object.number("coverage", 0);
  if (object.find("steps") != nullptr) part.steps = object.number("steps", 0);
  part.together = object.boolean("together", false);
  if (object.find("divergence") != nullptr) part.divergence = object.number("divergence", 0);
  part.tokens = read_rows<int>(object, "tokens", model, model.kv_heads,
                               [&](const JsonValue& v, const std::string& at) { return object.integer_of(v, at); });
  object.finish();
  return part;
}

int read_reselect(JsonObject object) {
  const int reselect = object.integer("reselect", std::nullopt);
  object.finish();
  return reselect;
}

std::vector<Kept> read_kept(JsonObject& object) {
  std::vector<Kept> kept;
  const std::string path = object.path_of("kept");
  const JsonArray& rows = object.need_array("kept");
  if (rows.empty() || rows.size() > kMaxKept) {
    object.refuse(path, fmt::format("{} rows; give 1 to {}, or leave it out", rows.size(), kMaxKept));
  }
  for (const JsonValue& value : rows) {
    JsonObject row = object.element(value, fmt::format("{}[{}]", path, kept.size()));
    const auto number = [&](std::string_view key) {
      row.need(key);
      return row.number(key, 0);
    };
    kept.push_back({row.text("method"), row.text("budget"), row.text("task"), number("answers"), number("dense"),
                    number("divergence"), number("coverage")});
    if (row.find("agreement") != nullptr) kept.back().agreement = number("agreement");
    if (row.find("options") != nullptr) kept.back().options = row.text("options");
    if (row.find("asked") != nullptr) kept.back().asked = row.integer("asked", std::nullopt);
    kept.back().left_out = row.boolean("left_out", false);
    row.finish();
  }
  return kept;
}

TokenTime read_time(JsonObject& object) {
  object.need("fixed_ms");
  object.need("ms_per_1000");
  return {object.number("fixed_ms", 0), object.number("ms_per_1000", 0)};
}

SpeedProfile read_speed(JsonObject object) {
  SpeedProfile speed;
  speed.processor = object.text("processor");
  speed.threads = object.integer("threads", std::nullopt);
  speed.kv_type = object.text("kv_type");
  speed.tokens = object.integer("tokens", std::nullopt);
  for (const auto& [key, time] : {std::pair{"dense", &speed.dense}, std::pair{"verify", &speed.verify}}) {
    JsonObject inner = object.object(key);
    *time = read_time(inner);
    inner.finish();
  }
  const std::string path = object.path_of("methods");
  const JsonArray& rows = object.need_array("methods");
  if (rows.size() > kMaxKept) object.refuse(path, fmt::format("{} rows; give {} at most", rows.size(), kMaxKept));
  for (const JsonValue& value : rows) {
    JsonObject row = object.element(value, fmt::format("{}[{}]", path, speed.methods.size()));
    MethodTime method{row.text("method"), row.text("budget"), "", read_time(row)};
    if (row.find("options") != nullptr) method.options = row.text("options");
    row.finish();
    speed.methods.push_back(std::move(method));
  }
  object.finish();
  return speed;
}

std::vector<double> read_shares(JsonObject object, std::string_view key, const ModelShape& model, int columns) {
  auto values = read_rows<double>(object, key, model, columns,
                                  [&](const JsonValue& v, const std::string& at) { return object.number_of(v, at); });
  object.finish();
  return values;
}

}  // namespace

std::string to_json(const Profile& profile) {
  validate(profile);
  const ModelShape& model = profile.model;
  Json json{{kKey, kVersion}};
  json["model"] = {{"architecture", model.architecture},
                   {"model_name", model.model_name},
                   {"layers", model.layers},
                   {"heads", model.heads},
                   {"kv_heads", model.kv_heads},
                   {"head_dim", model.head_dim}};
  if (profile.fingerprint) json["fingerprint"] = fingerprint_text(*profile.fingerprint);
  if (profile.kascade) {
    json["kascade"] = {{"anchors", profile.kascade->anchors},
                       {"head_map", rows_json(profile.kascade->head_map, model.kv_heads)}};
    if (!profile.kascade->objective.empty()) json["kascade"]["objective"] = profile.kascade->objective;
    if (!profile.kascade->similarity.empty()) {
      json["kascade"]["similarity"] = rows_json(profile.kascade->similarity, model.layers);
    }
  }
  if (profile.tidal) json["tidal"] = {{"reselect", profile.tidal->reselect}};
  if (profile.lessismore) json["lessismore"] = {{"reselect", profile.lessismore->reselect}};
  if (profile.omnikv) json["omnikv"] = {{"filters", profile.omnikv->filters}};
  if (profile.retrieval) json["retrieval"] = {{"scores", rows_json(profile.retrieval->scores, model.heads)}};
  if (profile.roles) json["roles"] = {{"probability", rows_json(profile.roles->probability, model.kv_heads)}};
  if (profile.budget) json["budget"] = budget_json(*profile.budget, model.kv_heads);
  for (const Kept& row : profile.kept) json["kept"].push_back(kept_json(row));
  if (profile.speed) json["speed"] = speed_json(*profile.speed);
  for (const SpeedProfile& speed : profile.elsewhere) json["elsewhere"].push_back(speed_json(speed));
  std::string text = "{\n";
  std::size_t left = json.size();
  for (const auto& [key, value] : json.items()) {  // a part a line
    text += fmt::format("  \"{}\": {}{}\n", key, value.dump(-1, ' ', false, Json::error_handler_t::replace),
                        --left > 0 ? "," : "");
  }
  return text + "}\n";
}

Profile parse_profile(std::string_view text) {
  const JsonValue json = parse_json(text, kWhat);
  JsonObject object(json, kWhat, "$");
  const int version = object.integer(kKey, std::nullopt);
  if (version != kVersion) {
    object.refuse(fmt::format("$.{}", kKey),
                  fmt::format("version {}; this program reads version {}", version, kVersion));
  }
  Profile profile;
  profile.model = read_model(object.object("model"));
  const ModelShape& model = profile.model;
  if (object.find("fingerprint") != nullptr) profile.fingerprint = read_fingerprint(object);
  if (object.find("kascade") != nullptr) profile.kascade = read_kascade(object.object("kascade"), model);
  if (object.find("tidal") != nullptr) profile.tidal = TidalProfile{read_reselect(object.object("tidal"))};
  if (object.find("lessismore") != nullptr) {
    profile.lessismore = LessIsMoreProfile{read_reselect(object.object("lessismore"))};
  }
  if (object.find("omnikv") != nullptr) {
    JsonObject omnikv = object.object("omnikv");
    omnikv.need("filters");
    profile.omnikv = OmniKvProfile{omnikv.integers("filters", kMaxLayers)};
    omnikv.finish();
  }
  if (object.find("retrieval") != nullptr) {
    profile.retrieval = RetrievalProfile{read_shares(object.object("retrieval"), "scores", model, model.heads)};
  }
  if (object.find("roles") != nullptr) {
    profile.roles = RolesProfile{read_shares(object.object("roles"), "probability", model, model.kv_heads)};
  }
  if (object.find("budget") != nullptr) profile.budget = read_budgets(object.object("budget"), model);
  if (object.find("kept") != nullptr) profile.kept = read_kept(object);
  if (object.find("speed") != nullptr) profile.speed = read_speed(object.object("speed"));
  if (object.find("elsewhere") != nullptr) {
    for (const JsonValue& value : object.need_array("elsewhere")) {
      const std::string at = fmt::format("{}[{}]", object.path_of("elsewhere"), profile.elsewhere.size());
      profile.elsewhere.push_back(read_speed(object.element(value, at)));
    }
  }
  object.finish();
  validate(profile);
  return profile;
}

bool is_profile_text(std::string_view text) {
  return text.find(fmt::format("\"{}\"", kKey)) != std::string_view::npos;
}

}  // namespace glimpse::plan
