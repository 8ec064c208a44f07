#include "glimpse/plan/profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "glimpse/base/error.h"
#include "glimpse/plan/checks.h"
#include "glimpse/plan/json_reader.h"

namespace glimpse::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::string_view kWhat = "profile JSON";
constexpr std::string_view kKey = "glimpse_profile";

template <class... Args>
[[noreturn]] void refuse_profile(std::string_view where, fmt::format_string<Args...> text, Args&&... args) {
  throw UserError(fmt::format("profile: {}: {}", where, fmt::format(text, std::forward<Args>(args)...)));
}

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

// Shares of something: NaN fails the comparison too.
void check_shares(std::string_view where, const std::vector<double>& values, int columns) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] <= 1) continue;
    refuse_profile(where, "layer {}, head {}: {} is outside 0 to 1", i / static_cast<std::size_t>(columns),
                   i % static_cast<std::size_t>(columns), values[i]);
  }
}

void check_kascade(const Profile& profile) {
  const ModelShape& model = profile.model;
  const std::vector<int>& anchors = profile.kascade->anchors;
  if (anchors.empty() || anchors[0] != 0) refuse_profile("kascade.anchors", "the first anchor must be layer 0");
  for (std::size_t i = 0; i < anchors.size(); ++i) {
    check_range("kascade.anchors", "layer", anchors[i], 0, model.layers - 1);
    if (i > 0 && anchors[i] <= anchors[i - 1]) {
      refuse_profile("kascade.anchors", "layer {} follows layer {}; write them in rising order, each once", anchors[i],
                     anchors[i - 1]);
    }
  }
  check_size("kascade.head_map", profile.kascade->head_map.size(), model, model.kv_heads);
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

// ---- writing ----

template <class T>
Json rows_json(const std::vector<T>& values, int columns) {
  Json rows = Json::array();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % static_cast<std::size_t>(columns) == 0) rows.push_back(Json::array());
    rows.back().push_back(values[i]);
  }
  return rows;
}

// ---- reading ----

// [layers][columns] under `key`, flattened; `read` takes one value and its path.
template <class T, class Read>
std::vector<T> read_rows(JsonObject& object, std::string_view key, const ModelShape& model, int columns, Read&& read) {
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
      object.refuse(at, fmt::format("{} values; give one for each of {} heads", row->size(), columns));
    }
    for (std::size_t j = 0; j < row->size(); ++j) values.push_back(read((*row)[j], fmt::format("{}[{}]", at, j)));
  }
  return values;
}

ModelShape read_model(JsonObject object) {
  ModelShape model;
  model.architecture = object.text("architecture");
  model.model_name = object.text("model_name");
  model.layers = object.integer("layers", std::nullopt);
  model.heads = object.integer("heads", std::nullopt);
  model.kv_heads = object.integer("kv_heads", std::nullopt);
  model.head_dim = object.integer("head_dim", std::nullopt);
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
  object.finish();
  return part;
}

std::vector<double> read_shares(JsonObject object, std::string_view key, const ModelShape& model, int columns) {
  auto values = read_rows<double>(object, key, model, columns,
                                  [&](const JsonValue& v, const std::string& at) { return object.number_of(v, at); });
  object.finish();
  return values;
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

bool Profile::has(std::string_view part) const {
  return (part == "kascade" && kascade) || (part == "tidal" && tidal) || (part == "retrieval" && retrieval) ||
         (part == "roles" && roles);
}

void validate(const Profile& profile) {
  const ModelShape& model = profile.model;
  validate_shape(model);
  if (model.context != 0) refuse_profile("model", "context = {}; a profile holds for any, give 0", model.context);
  if (!profile.kascade && !profile.tidal && !profile.retrieval && !profile.roles) {
    refuse_profile("parts", "none; give kascade, tidal, retrieval or roles");
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
}

void validate_for(const Profile& profile, const ModelShape& shape) {
  validate(profile);
  ModelShape mine = shape;
  mine.context = 0;
  if (profile.model == mine) return;
  const auto words = [](const ModelShape& m) {
    return fmt::format("{} '{}' of {} layers, {} query and {} KV heads of {}", m.architecture, m.model_name, m.layers,
                       m.heads, m.kv_heads, m.head_dim);
  };
  refuse_profile("model", "made for {}, but the model is {}; calibrate this model", words(profile.model), words(mine));
}

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
  if (profile.kascade) {
    json["kascade"] = {{"anchors", profile.kascade->anchors},
                       {"head_map", rows_json(profile.kascade->head_map, model.kv_heads)}};
  }
  if (profile.tidal) json["tidal"] = {{"reselect", profile.tidal->reselect}};
  if (profile.retrieval) json["retrieval"] = {{"scores", rows_json(profile.retrieval->scores, model.heads)}};
  if (profile.roles) json["roles"] = {{"probability", rows_json(profile.roles->probability, model.kv_heads)}};
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
  if (object.find("kascade") != nullptr) profile.kascade = read_kascade(object.object("kascade"), model);
  if (object.find("tidal") != nullptr) {
    JsonObject tidal = object.object("tidal");
    profile.tidal = TidalProfile{tidal.integer("reselect", std::nullopt)};
    tidal.finish();
  }
  if (object.find("retrieval") != nullptr) {
    profile.retrieval = RetrievalProfile{read_shares(object.object("retrieval"), "scores", model, model.heads)};
  }
  if (object.find("roles") != nullptr) {
    profile.roles = RolesProfile{read_shares(object.object("roles"), "probability", model, model.kv_heads)};
  }
  object.finish();
  validate(profile);
  return profile;
}

bool is_profile_text(std::string_view text) {
  return text.find(fmt::format("\"{}\"", kKey)) != std::string_view::npos;
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
  }
  if (profile.tidal) text += fmt::format("tidal      layer {} selects again\n", profile.tidal->reselect);
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
  return text;
}

}  // namespace glimpse::plan
