#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/plan/checks.h"
#include "glimpse/plan/json_reader.h"
#include "glimpse/plan/words.h"

namespace glimpse::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::string_view kWhat = "plan JSON";

// ---- writing ----

Json index_json(const IndexOptions& index) {
  const IndexOptions usual;
  Json json = Json::object();
  const auto add = [&](const char* key, auto field) {
    if (index.*field != usual.*field) json[key] = index.*field;
  };
  if (index.digest != usual.digest) json["digest"] = word(index.digest);
  add("deviation_weight", &IndexOptions::deviation_weight);
  add("fixed_chunks", &IndexOptions::fixed_chunks);
  add("max_pooling", &IndexOptions::max_pooling);
  add("whole_clusters", &IndexOptions::whole_clusters);
  add("chunk_bounds", &IndexOptions::chunk_bounds);
  add("chunks_per_cluster", &IndexOptions::chunks_per_cluster);
  add("tokens_per_cluster", &IndexOptions::tokens_per_cluster);
  add("new_tokens", &IndexOptions::new_tokens);
  add("outlier_chunks", &IndexOptions::outlier_chunks);
  add("key_rank", &IndexOptions::key_rank);
  add("gates", &IndexOptions::gates);
  return json;
}

// [[budget, tokens], ...]
Json rows_json(const std::vector<BudgetRow>& rows) {
  Json json = Json::array();
  for (const BudgetRow& row : rows) json.push_back(Json::array({row.budget, row.tokens}));
  return json;
}

Json term_json(const Term& term) {
  Json json{{"source", word(term.source)}, {"group", word(term.group)}, {"heads", word(term.heads)}};
  if (term.budget) json["budget"] = to_string(*term.budget);
  if (!term.budget_rows.empty()) json["budget_rows"] = rows_json(term.budget_rows);
  if (!term.query_heads.empty()) json["query_heads"] = term.query_heads;
  if (!(term.index == IndexOptions{})) json["index"] = index_json(term.index);
  return json;
}

Json selector_json(const Selector& s) {
  Json terms = Json::array();
  for (const Term& term : s.terms) terms.push_back(term_json(term));
  Json json{
      {"budget", to_string(s.budget)}, {"per", word(s.per)}, {"block", s.block}, {"sink", s.sink}, {"local", s.local}};
  if (!s.local_rows.empty()) json["local_rows"] = rows_json(s.local_rows);
  if (s.local_share != 0) json["local_share"] = s.local_share;
  if (!s.counts_local) json["counts_local"] = false;
  json["terms"] = std::move(terms);
  return json;
}

// `head` of the slot is left out where it is the reader's own index (`own`), so that the heads of a layer look alike.
Json role_json(const Role& role, int own) {
  Json json{{"role", word(role.kind)}};
  if (role.selector != -1) json["selector"] = role.selector;
  if (role.attends_set) json["attends"] = "set";
  if (!(role.reads == SlotId{})) {
    json["reads"] = {{"layer", role.reads.layer}};
    if (role.reads.head != own) json["reads"]["head"] = role.reads.head;
  }
  if (role.retention != -1) json["retention"] = role.retention;
  return json;
}

Json layer_json(const Plan& plan, int layer) {
  constexpr int kNobody = -1;
  const auto heads_json = [&](bool name_slots) {
    Json heads = Json::array();
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      heads.push_back(role_json(plan.role(layer, head), name_slots ? kNobody : head));
    }
    const bool alike = std::all_of(heads.begin(), heads.end(), [&](const Json& head) { return head == heads[0]; });
    return alike ? Json::array({Json(heads[0])}) : heads;
  };
  Json heads = heads_json(false);
  if (heads.size() > 1) {
    if (Json named = heads_json(true); named.size() == 1) heads = std::move(named);  // all read one slot
  }
  Json json{{"heads", heads}};
  const Combine combine = plan.combine[static_cast<std::size_t>(layer)];
  if (combine != Combine::none) json["combine"] = word(combine);
  return json;
}

Json layers_json(const Plan& plan) {
  Json runs = Json::array();
  Json previous;
  int first = 0;
  const auto flush = [&](int end) {
    if (end == first) return;
    Json run{{"layers", {first, end - 1}}};
    run.update(previous);
    runs.push_back(run);
    first = end;
  };
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    Json current = layer_json(plan, layer);
    if (current != previous) flush(layer);
    previous = std::move(current);
  }
  flush(plan.shape.layers);
  return runs;
}

// Two levels of indentation, then one object a line: a plan of 80 layers is read on a screen.
std::string pretty(const Json& json) {
  const auto flat = [](const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); };
  std::string text = "{\n";
  std::size_t left = json.size();
  for (const auto& [key, value] : json.items()) {
    text += fmt::format("  \"{}\": ", key);
    if (value.is_array() && !value.empty()) {
      text += "[\n";
      for (std::size_t i = 0; i < value.size(); ++i) {
        text += fmt::format("    {}{}\n", flat(value[i]), i + 1 < value.size() ? "," : "");
      }
      text += "  ]";
    } else {
      text += flat(value);
    }
    text += --left > 0 ? ",\n" : "\n";
  }
  return text + "}\n";
}

// ---- reading ----

ModelShape read_shape(JsonObject object) {
  ModelShape shape = read_model_keys(object);
  shape.context = object.integer("context", std::nullopt);
  object.finish();
  return shape;
}

Budget read_budget(JsonObject& object, std::string_view key) {
  const std::string written = object.text(key);
  try {
    return parse_budget(written);
  } catch (const UserError& error) {
    object.refuse(object.path_of(key), error.what());
  }
}

IndexOptions read_index(JsonObject object) {
  IndexOptions index;
  index.digest = object.choice<Digest>("digest", index.digest);
  index.deviation_weight = object.number("deviation_weight", index.deviation_weight);
  index.fixed_chunks = object.boolean("fixed_chunks", index.fixed_chunks);
  index.max_pooling = object.boolean("max_pooling", index.max_pooling);
  index.whole_clusters = object.boolean("whole_clusters", index.whole_clusters);
  index.chunk_bounds = object.boolean("chunk_bounds", index.chunk_bounds);
  index.chunks_per_cluster = object.integer("chunks_per_cluster", index.chunks_per_cluster);
  index.tokens_per_cluster = object.integer("tokens_per_cluster", index.tokens_per_cluster);
  index.new_tokens = object.integer("new_tokens", index.new_tokens);
  index.outlier_chunks = object.integer("outlier_chunks", index.outlier_chunks);
  index.key_rank = object.integer("key_rank", index.key_rank);
  if (object.find("gates") != nullptr) index.gates = object.text("gates");
  object.finish();
  return index;
}

std::vector<BudgetRow> read_rows(JsonObject& object, std::string_view key) {
  std::vector<BudgetRow> rows;
  const JsonArray* list = object.array(key);
  if (list == nullptr) return rows;
  const std::string path = object.path_of(key);
  if (list->size() > kMaxRows) object.refuse(path, fmt::format("at most {} rows", kMaxRows));
  for (const JsonValue& entry : *list) {
    const auto* pair = std::get_if<JsonArray>(&entry.value);
    if (pair == nullptr || pair->size() != 2) object.refuse(path, "expected rows of [budget, tokens]");
    rows.push_back({object.integer_of((*pair)[0], path), object.integer_of((*pair)[1], path)});
  }
  return rows;
}

Term read_term(JsonObject object) {
  Term term;
  term.source = object.choice<Source>("source", std::nullopt);
  term.group = object.choice<GroupPooling>("group", std::nullopt);
  term.heads = object.choice<HeadPooling>("heads", HeadPooling::none);
  if (object.find("budget") != nullptr) term.budget = read_budget(object, "budget");
  term.budget_rows = read_rows(object, "budget_rows");
  term.query_heads = object.integers("query_heads", kMaxHeads);
  if (object.find("index") != nullptr) term.index = read_index(object.object("index"));
  object.finish();
  return term;
}

Selector read_selector(JsonObject object) {
  Selector selector;
  selector.budget = read_budget(object, "budget");
  selector.per = object.choice<SetPer>("per", SetPer::kv_head);
  selector.block = object.integer("block", 1);
  selector.sink = object.integer("sink", 0);
  selector.local = object.integer("local", 0);
  selector.local_rows = read_rows(object, "local_rows");
  selector.local_share = object.number("local_share", 0);
  selector.counts_local = object.boolean("counts_local", true);
  if (const JsonArray* terms = object.array("terms")) {
    const std::string path = object.path_of("terms");
    if (terms->size() > kMaxTerms) object.refuse(path, fmt::format("at most {} terms", kMaxTerms));
    for (std::size_t i = 0; i < terms->size(); ++i) {
      selector.terms.push_back(read_term(object.element((*terms)[i], fmt::format("{}[{}]", path, i))));
    }
  }
  object.finish();
  return selector;
}

Retention read_retention(JsonObject object) {
  Retention retention;
  retention.rule = object.choice<RetentionRule>("rule", std::nullopt);
  retention.sink = object.integer("sink", 0);
  if (object.find("budget") != nullptr) retention.budget = read_budget(object, "budget");
  retention.recent_share = object.number("recent_share", retention.recent_share);
  retention.per = object.choice<SetPer>("per", retention.per);
  retention.compensates = object.boolean("compensates", false);
  object.finish();
  return retention;
}

Role read_role(JsonObject object) {
  Role role;
  role.kind = object.choice<RoleKind>("role", std::nullopt);
  role.selector = object.integer("selector", -1);
  if (object.find("attends") != nullptr) {
    const std::string attends = object.text("attends");
    if (attends != "set" && attends != "all") {
      object.refuse(object.path_of("attends"), fmt::format("'{}' is neither set nor all", excerpt(attends)));
    }
    role.attends_set = attends == "set";
  }
  if (object.find("reads") != nullptr) {
    JsonObject slot = object.object("reads");
    role.reads.layer = slot.integer("layer", std::nullopt);
    role.reads.head = slot.integer("head", -1);  // -1: the reader's own index, filled in by the caller
    if (slot.find("head") != nullptr && role.reads.head < 0) slot.refuse(slot.path_of("head"), "is negative");
    slot.finish();
  }
  role.retention = object.integer("retention", -1);
  object.finish();
  return role;
}

// A run of equal layers: {"layers": [first, last], "heads": [one for all heads, or one each], "combine": word}.
int read_run(JsonObject object, int next, Plan& plan) {
  object.need("layers");
  const auto* range = std::get_if<JsonArray>(&object.need("layers").value);
  if (range == nullptr || range->size() != 2) object.refuse(object.path_of("layers"), "expected [first, last]");
  const int first = object.integer_of((*range)[0], object.path_of("layers[0]"));
  const int last = object.integer_of((*range)[1], object.path_of("layers[1]"));
  if (first != next) {
    object.refuse(object.path_of("layers"), fmt::format("starts at layer {}, expected {}", first, next));
  }
  if (last < first || last >= plan.shape.layers) {
    object.refuse(object.path_of("layers"),
                  fmt::format("ends at layer {}; give {} to {}", last, first, plan.shape.layers - 1));
  }
  const auto kv_heads = static_cast<std::size_t>(plan.shape.kv_heads);
  const JsonArray& heads = object.need_array("heads");
  if (heads.size() != 1 && heads.size() != kv_heads) {
    object.refuse(object.path_of("heads"),
                  fmt::format("{} roles; give 1 for all heads, or {}", heads.size(), kv_heads));
  }
  const Combine combine = object.choice<Combine>("combine", Combine::none);
  object.finish();
  std::vector<Role> roles;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    roles.push_back(read_role(object.element(heads[i], fmt::format("{}[{}]", object.path_of("heads"), i))));
  }
  for (int layer = first; layer <= last; ++layer) {
    plan.combine[static_cast<std::size_t>(layer)] = combine;
    for (int head = 0; head < plan.shape.kv_heads; ++head) {
      Role role = roles[roles.size() == 1 ? 0 : static_cast<std::size_t>(head)];
      if (role.reads.layer >= 0 && role.reads.head < 0) role.reads.head = head;
      plan.role(layer, head) = role;
    }
  }
  return last + 1;
}

Prefill read_prefill(JsonObject object) {
  Prefill prefill;
  prefill.sparse = object.boolean("sparse", false);
  prefill.tile_rows = object.integer("tile_rows", 0);
  prefill.observe = object.choice<Observe>("observe", Observe::none);
  prefill.observe_rows = object.integer("observe_rows", 0);
  object.finish();
  return prefill;
}

Heat read_heat(JsonObject object) {
  Heat heat;
  heat.decay = object.number("decay", heat.decay);
  heat.per_layer = object.boolean("per_layer", heat.per_layer);
  heat.first_layer = object.integer("first_layer", heat.first_layer);
  object.finish();
  return heat;
}

// The list under `key`, each entry by `read`; empty when the key is not there.
template <class Read>
void read_list(JsonObject& object, std::string_view key, Read&& read) {
  const JsonArray* list = object.array(key);
  if (list == nullptr) return;
  if (list->size() > kMaxSelectors) object.refuse(object.path_of(key), fmt::format("at most {}", kMaxSelectors));
  for (std::size_t i = 0; i < list->size(); ++i) {
    read(object.element((*list)[i], fmt::format("{}[{}]", object.path_of(key), i)));
  }
}

}  // namespace

std::string to_json(const Plan& plan) {
  validate(plan);
  const ModelShape& shape = plan.shape;
  Json json{{"glimpse_plan", kVersion}, {"policy", plan.policy}, {"min_context", plan.min_context}};
  json["shape"] = {{"architecture", shape.architecture},
                   {"model_name", shape.model_name},
                   {"layers", shape.layers},
                   {"heads", shape.heads},
                   {"kv_heads", shape.kv_heads},
                   {"head_dim", shape.head_dim},
                   {"context", shape.context}};
  json["selectors"] = Json::array();
  for (const Selector& selector : plan.selectors) json["selectors"].push_back(selector_json(selector));
  json["retentions"] = Json::array();
  for (const Retention& r : plan.retentions) {
    Json retention{{"rule", word(r.rule)}};
    if (r.rule != RetentionRule::all) retention.update({{"sink", r.sink}, {"budget", to_string(r.budget)}});
    if (r.rule == RetentionRule::accumulated) retention["recent_share"] = r.recent_share;
    if (r.per != SetPer::kv_head) retention["per"] = word(r.per);
    if (r.compensates) retention["compensates"] = true;
    json["retentions"].push_back(retention);
  }
  json["layers"] = layers_json(plan);
  json["prefill"] = {{"sparse", plan.prefill.sparse}};
  if (plan.prefill.sparse) json["prefill"]["tile_rows"] = plan.prefill.tile_rows;
  json["prefill"]["observe"] = word(plan.prefill.observe);
  if (plan.prefill.observe == Observe::last_rows) json["prefill"]["observe_rows"] = plan.prefill.observe_rows;
  json["feedback"] = word(plan.feedback);
  if (reads_heat(plan)) {
    json["heat"] = {
        {"decay", plan.heat.decay}, {"per_layer", plan.heat.per_layer}, {"first_layer", plan.heat.first_layer}};
  }
  return pretty(json);
}

Plan from_json(std::string_view text) {
  const JsonValue json = parse_json(text, kWhat);
  JsonObject object(json, kWhat, "$");
  const int version = object.integer("glimpse_plan", std::nullopt);
  if (version != kVersion) {
    object.refuse("$.glimpse_plan", fmt::format("version {}; this program reads version {}", version, kVersion));
  }
  const ModelShape shape = read_shape(object.object("shape"));
  Plan plan = dense_plan(shape);
  plan.policy = object.text("policy");
  plan.min_context = object.integer("min_context", 0);
  read_list(object, "selectors", [&](const JsonObject& entry) { plan.selectors.push_back(read_selector(entry)); });
  read_list(object, "retentions", [&](const JsonObject& entry) { plan.retentions.push_back(read_retention(entry)); });
  const JsonArray& runs = object.need_array("layers");
  int next = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    next = read_run(object.element(runs[i], fmt::format("$.layers[{}]", i)), next, plan);
  }
  if (next != shape.layers) {
    object.refuse("$.layers", fmt::format("end after {} of {} layers; write a run for the rest", next, shape.layers));
  }
  if (object.find("prefill") != nullptr) plan.prefill = read_prefill(object.object("prefill"));
  plan.feedback = object.choice<Feedback>("feedback", Feedback::none);
  if (object.find("heat") != nullptr) plan.heat = read_heat(object.object("heat"));
  object.finish();
  validate(plan);
  return plan;
}

}  // namespace glimpse::plan
