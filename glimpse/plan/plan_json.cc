#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"
#include "glimpse/plan/checks.h"
#include "glimpse/plan/words.h"

namespace glimpse::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr std::size_t kMaxText = 4u << 20;  // the largest plan that validates is far smaller when written in runs
constexpr int kMaxDepth = 16;

// ---- writing ----

Json term_json(const Term& term) {
  Json json{{"source", word(term.source)}, {"group", word(term.group)}, {"heads", word(term.heads)}};
  if (term.budget) json["budget"] = to_string(*term.budget);
  if (!term.query_heads.empty()) json["query_heads"] = term.query_heads;
  return json;
}

Json selector_json(const Selector& s) {
  Json terms = Json::array();
  for (const Term& term : s.terms) terms.push_back(term_json(term));
  return {{"budget", to_string(s.budget)},
          {"per", word(s.per)},
          {"block", s.block},
          {"sink", s.sink},
          {"local", s.local},
          {"terms", terms}};
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
  if (role.scope.lifetime != Lifetime::step) json["lifetime"] = word(role.scope.lifetime);
  if (role.scope.lifetime == Lifetime::steps) json["steps"] = role.scope.steps;
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

[[noreturn]] void refuse_json(const std::string& path, const std::string& text) {
  throw UserError(fmt::format("plan JSON: {}: {}", path, text));
}

// One JSON object with the path to it; remembers what was read, so that finish() can refuse the rest.
class Object {
 public:
  Object(const Json& json, std::string path) : json_(json), path_(std::move(path)) {
    if (!json_.is_object()) refuse_json(path_, fmt::format("expected an object, found {}", json_.type_name()));
  }

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view key) const { return fmt::format("{}.{}", path_, key); }

  const Json* find(std::string_view key) {
    known_.push_back(key);
    const auto it = json_.find(std::string(key));
    return it == json_.end() ? nullptr : &*it;
  }

  const Json& need(std::string_view key) {
    const Json* value = find(key);
    if (value == nullptr) refuse_json(path_, fmt::format("'{}' is missing", key));
    return *value;
  }

  const Json* array(std::string_view key) {
    const Json* value = find(key);
    if (value != nullptr && !value->is_array()) {
      refuse_json(path_of(key), fmt::format("expected an array, found {}", value->type_name()));
    }
    return value;
  }

  int integer(std::string_view key, std::optional<int> otherwise) {
    const Json* value = otherwise ? find(key) : &need(key);
    return value == nullptr ? *otherwise : integer_of(*value, path_of(key));
  }

  std::string text(std::string_view key) {
    const Json& value = need(key);
    if (!value.is_string()) refuse_json(path_of(key), fmt::format("expected a string, found {}", value.type_name()));
    return value.get<std::string>();
  }

  bool boolean(std::string_view key, bool otherwise) {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean())
      refuse_json(path_of(key), fmt::format("expected true or false, found {}", value->type_name()));
    return value->get<bool>();
  }

  template <class Enum>
  Enum choice(std::string_view key, std::optional<Enum> otherwise) {
    if (const Json* value = find(key); value == nullptr && otherwise) return *otherwise;
    const std::string chosen = text(key);
    for (std::size_t i = 0; i < kWords<Enum>.size(); ++i) {
      if (kWords<Enum>[i] == chosen) return static_cast<Enum>(i);
    }
    refuse_json(path_of(key), unknown_name("word", chosen, kWords<Enum>));
  }

  Budget budget(std::string_view key) {
    const std::string written = text(key);
    try {
      return parse_budget(written);
    } catch (const UserError& error) {
      refuse_json(path_of(key), error.what());
    }
  }

  void finish() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(known_.begin(), known_.end(), key) == known_.end()) {
        refuse_json(path_, unknown_name("key", key.substr(0, 64), known_));
      }
    }
  }

  static int integer_of(const Json& value, const std::string& path) {
    if (!value.is_number_integer())
      refuse_json(path, fmt::format("expected a whole number, found {}", value.type_name()));
    const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= std::uint64_t{kMaxTokens}
                                                 : value.get<std::int64_t>() >= -std::int64_t{kMaxTokens};
    if (!fits) refuse_json(path, fmt::format("{} is out of range; the limit is {}", value.dump(), kMaxTokens));
    return value.get<int>();
  }

 private:
  const Json& json_;
  std::string path_;
  std::vector<std::string_view> known_;
};

ModelShape read_shape(const Json& json) {
  Object object(json, "$.shape");
  ModelShape shape;
  shape.architecture = object.text("architecture");
  shape.model_name = object.text("model_name");
  shape.layers = object.integer("layers", std::nullopt);
  shape.heads = object.integer("heads", std::nullopt);
  shape.kv_heads = object.integer("kv_heads", std::nullopt);
  shape.head_dim = object.integer("head_dim", std::nullopt);
  shape.context = object.integer("context", std::nullopt);
  object.finish();
  return shape;
}

Term read_term(const Json& json, const std::string& path) {
  Object object(json, path);
  Term term;
  term.source = object.choice<Source>("source", std::nullopt);
  term.group = object.choice<GroupPooling>("group", std::nullopt);
  term.heads = object.choice<HeadPooling>("heads", HeadPooling::none);
  if (object.find("budget") != nullptr) term.budget = object.budget("budget");
  if (const Json* heads = object.array("query_heads")) {
    if (heads->size() > kMaxHeads) refuse_json(object.path_of("query_heads"), "more entries than heads in any model");
    for (std::size_t i = 0; i < heads->size(); ++i) {
      term.query_heads.push_back(Object::integer_of((*heads)[i], fmt::format("{}.query_heads[{}]", path, i)));
    }
  }
  object.finish();
  return term;
}

Selector read_selector(const Json& json, const std::string& path) {
  Object object(json, path);
  Selector selector;
  selector.budget = object.budget("budget");
  selector.per = object.choice<SetPer>("per", SetPer::kv_head);
  selector.block = object.integer("block", 1);
  selector.sink = object.integer("sink", 0);
  selector.local = object.integer("local", 0);
  if (const Json* terms = object.array("terms")) {
    if (terms->size() > kMaxTerms) refuse_json(object.path_of("terms"), fmt::format("at most {} terms", kMaxTerms));
    for (std::size_t i = 0; i < terms->size(); ++i) {
      selector.terms.push_back(read_term((*terms)[i], fmt::format("{}.terms[{}]", path, i)));
    }
  }
  object.finish();
  return selector;
}

Retention read_retention(const Json& json, const std::string& path) {
  Object object(json, path);
  Retention retention;
  retention.rule = object.choice<RetentionRule>("rule", std::nullopt);
  retention.sink = object.integer("sink", 0);
  if (object.find("budget") != nullptr) retention.budget = object.budget("budget");
  object.finish();
  return retention;
}

Role read_role(const Json& json, const std::string& path) {
  Object object(json, path);
  Role role;
  role.kind = object.choice<RoleKind>("role", std::nullopt);
  role.selector = object.integer("selector", -1);
  if (object.find("attends") != nullptr) {
    const std::string attends = object.text("attends");
    if (attends != "set" && attends != "all") {
      refuse_json(object.path_of("attends"), fmt::format("'{}' is neither set nor all", attends.substr(0, 64)));
    }
    role.attends_set = attends == "set";
  }
  if (const Json* reads = object.find("reads")) {
    Object slot(*reads, object.path_of("reads"));
    role.reads.layer = slot.integer("layer", std::nullopt);
    role.reads.head = slot.integer("head", -1);  // -1: the reader's own index, filled in by the caller
    if (slot.find("head") != nullptr && role.reads.head < 0) refuse_json(slot.path_of("head"), "is negative");
    slot.finish();
  }
  role.scope.lifetime = object.choice<Lifetime>("lifetime", Lifetime::step);
  role.scope.steps = object.integer("steps", 1);
  role.retention = object.integer("retention", -1);
  object.finish();
  return role;
}

// A run of equal layers: {"layers": [first, last], "heads": [one for all heads, or one each], "combine": word}.
int read_run(const Json& json, const std::string& path, int next, Plan& plan) {
  Object object(json, path);
  const Json& range = object.need("layers");
  if (!range.is_array() || range.size() != 2) refuse_json(object.path_of("layers"), "expected [first, last]");
  const int first = Object::integer_of(range[0], object.path_of("layers[0]"));
  const int last = Object::integer_of(range[1], object.path_of("layers[1]"));
  if (first != next) refuse_json(object.path_of("layers"), fmt::format("starts at layer {}, expected {}", first, next));
  if (last < first || last >= plan.shape.layers) {
    refuse_json(object.path_of("layers"),
                fmt::format("ends at layer {}; give {} to {}", last, first, plan.shape.layers - 1));
  }
  const auto kv_heads = static_cast<std::size_t>(plan.shape.kv_heads);
  object.need("heads");
  const Json& heads = *object.array("heads");
  if (heads.size() != 1 && heads.size() != kv_heads) {
    refuse_json(object.path_of("heads"), fmt::format("{} roles; give 1 for all heads, or {}", heads.size(), kv_heads));
  }
  const Combine combine = object.choice<Combine>("combine", Combine::none);
  object.finish();
  std::vector<Role> roles;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    roles.push_back(read_role(heads[i], fmt::format("{}.heads[{}]", path, i)));
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

Prefill read_prefill(const Json& json) {
  Object object(json, "$.prefill");
  Prefill prefill;
  prefill.sparse = object.boolean("sparse", false);
  prefill.tile_rows = object.integer("tile_rows", 0);
  prefill.observe = object.choice<Observe>("observe", Observe::none);
  prefill.observe_rows = object.integer("observe_rows", 0);
  object.finish();
  return prefill;
}

// Duplicate keys and deep nesting end here, before a document is built from them.
Json parse_text(std::string_view text) {
  if (text.size() > kMaxText) {
    throw UserError(fmt::format("plan JSON: {} bytes are over the limit of {}", text.size(), kMaxText));
  }
  std::vector<std::set<std::string>> keys;
  const auto guard = [&keys](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxDepth) throw UserError(fmt::format("plan JSON: nested deeper than {} levels", kMaxDepth));
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      throw UserError(fmt::format("plan JSON: key '{}' is given twice", parsed.get<std::string>().substr(0, 64)));
    }
    return true;
  };
  try {
    return Json::parse(text, guard);
  } catch (const Json::exception& error) {
    throw UserError(
        fmt::format("plan JSON: not valid JSON, or cut short: {}", std::string_view(error.what()).substr(0, 300)));
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
    json["retentions"].push_back(retention);
  }
  json["layers"] = layers_json(plan);
  json["prefill"] = {{"sparse", plan.prefill.sparse}};
  if (plan.prefill.sparse) json["prefill"]["tile_rows"] = plan.prefill.tile_rows;
  json["prefill"]["observe"] = word(plan.prefill.observe);
  if (plan.prefill.observe == Observe::last_rows) json["prefill"]["observe_rows"] = plan.prefill.observe_rows;
  json["feedback"] = word(plan.feedback);
  return pretty(json);
}

Plan from_json(std::string_view text) {
  const Json json = parse_text(text);
  Object object(json, "$");
  const int version = object.integer("glimpse_plan", std::nullopt);
  if (version != kVersion) {
    refuse_json("$.glimpse_plan", fmt::format("version {}; this program reads version {}", version, kVersion));
  }
  const ModelShape shape = read_shape(object.need("shape"));
  Plan plan = dense_plan(shape);
  plan.policy = object.text("policy");
  plan.min_context = object.integer("min_context", 0);
  if (const Json* selectors = object.array("selectors")) {
    if (selectors->size() > kMaxSelectors) refuse_json("$.selectors", fmt::format("at most {}", kMaxSelectors));
    for (std::size_t i = 0; i < selectors->size(); ++i) {
      plan.selectors.push_back(read_selector((*selectors)[i], fmt::format("$.selectors[{}]", i)));
    }
  }
  if (const Json* retentions = object.array("retentions")) {
    if (retentions->size() > kMaxSelectors) refuse_json("$.retentions", fmt::format("at most {}", kMaxSelectors));
    for (std::size_t i = 0; i < retentions->size(); ++i) {
      plan.retentions.push_back(read_retention((*retentions)[i], fmt::format("$.retentions[{}]", i)));
    }
  }
  object.need("layers");
  const Json& runs = *object.array("layers");
  int next = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) next = read_run(runs[i], fmt::format("$.layers[{}]", i), next, plan);
  if (next != shape.layers) {
    refuse_json("$.layers", fmt::format("end after {} of {} layers; write a run for the rest", next, shape.layers));
  }
  if (const Json* prefill = object.find("prefill")) plan.prefill = read_prefill(*prefill);
  plan.feedback = object.choice<Feedback>("feedback", Feedback::none);
  object.finish();
  validate(plan);
  return plan;
}

}  // namespace glimpse::plan
