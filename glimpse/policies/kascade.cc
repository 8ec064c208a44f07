// Kascade: Deshmukh, Goyal, Kwatra, Ramjee, "Kascade: A Practical Sparse Attention Method for Long-Context LLM
// Inference", 2025, arXiv 2512.16391, section 3 (anchor and reuse layers, head map, tiles of the prompt).
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr double kShare = 0.1;
constexpr int kLeast = 128;
constexpr int kTileRows = 128;
constexpr std::array<std::string_view, 2> kSets{"kv-head", "layer"};
constexpr std::array<std::string_view, 2> kMaps{"auto", "identity"};
constexpr std::array<std::string_view, 2> kPooling{"probability", "query"};
constexpr std::array<std::string_view, 3> kPrefill{"auto", "sparse", "dense"};
constexpr std::array<std::string_view, 2> kAnchorWords{"auto", "all"};

const std::array<OptionHelp, 7> kOptions{{
    {"anchors", "0+LAYER...|FSS...|auto|all", "auto",
     "the layers that select, layer 0 first, or a letter a layer, F selects and S shares; auto: the profile's, else "
     "the paper's for this model, else those of its "
     "32-layer model, scaled; all: every layer for itself, the paper's oracle"},
    {"head-map", "auto|identity", "auto", "whose set of the anchor a head reads: the profile's map, or its own index"},
    {"set", "kv-head|layer", "kv-head", "a set per KV head, or one per layer by all heads pooled"},
    {"pooling", "probability|query", "probability",
     "over the group: mean of the probabilities, or of the queries before softmax"},
    {"anchor-selector", kSelectorValues, "exact",
     "what anchors choose by: exact scores, or another method's index over the keys", true},
    {"prefill", "auto|sparse|dense", "auto",
     "whether prompts are read sparsely too; auto: sparse where the anchors' scores are exact and the budget counted"},
    {"tile", "ROWS|auto", "auto", "query rows of a prompt tile, the group counted in; auto: 128"},
}};

struct NamedAnchors {
  std::string_view name;  ///< as plain_name writes it
  std::string_view architecture;
  int layers;
  std::array<int, 5> anchors;
};
constexpr std::array kNamed{
    NamedAnchors{"llama318b", "llama", 32, {0, 2, 8, 13, 14}},
    NamedAnchors{"qwen38b", "qwen3", 36, {0, 2, 7, 14, 23}},
};

struct Anchors {
  std::vector<int> layers;
  bool profiled = false;
};

/// "FFSSF": a letter for each layer, as `glimpse plan` prints it. Nothing when the option says it another way.
std::optional<std::vector<int>> lettered_anchors(const OptionReader& read, const plan::ModelShape& shape) {
  const std::string_view letters = read.text("anchors").value_or("");
  if (letters.empty() || letters.find_first_not_of("FS") != std::string_view::npos) return std::nullopt;
  if (letters.size() != static_cast<std::size_t>(shape.layers)) {
    read.refuse("anchors", letters,
                fmt::format("{} letters for {} layers; give one for each", letters.size(), shape.layers));
  }
  std::vector<int> layers;
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (letters[static_cast<std::size_t>(layer)] == 'F') layers.push_back(layer);
  }
  if (layers.empty()) read.refuse("anchors", letters, "no layer selects; the first letter is F");
  return layers;
}

Anchors choose_anchors(const OptionReader& read, const plan::ModelShape& shape) {
  std::optional<std::vector<int>> given = lettered_anchors(read, shape);
  if (!given) given = read.layers("anchors", 0, shape.layers - 1, kAnchorWords);
  const bool all = read.text("anchors") == "all";
  if (given || all) read.leave_profile("anchors are given, so the profile's anchors and head map are not used");
  if (given) {
    if (given->front() != 0) read.refuse("anchors", *read.text("anchors"), "the first anchor is layer 0");
    return {*given};
  }
  if (all) {
    Anchors anchors;
    for (int layer = 0; layer < shape.layers; ++layer) anchors.layers.push_back(layer);
    return anchors;
  }
  if (read.profile() != nullptr) return {read.profile()->kascade->anchors, true};
  const std::string name = plain_name(shape);
  const auto named = std::find_if(kNamed.begin(), kNamed.end(), [&](const NamedAnchors& row) {
    return row.architecture == shape.architecture && row.layers == shape.layers &&
           name.find(row.name) != std::string::npos;
  });
  const bool known = named != kNamed.end();
  read.warn_guess(fmt::format(
      "{} and each head reads its own index",
      known ? "anchors are the paper's for this model" : "anchors are those of the paper's 32-layer model, scaled"));
  if (known) return {{named->anchors.begin(), named->anchors.end()}};
  return {scaled_layers(kNamed[0].anchors, shape.layers)};
}

plan::Selector make_selector(const OptionReader& read) {
  const plan::Budget usual{plan::BudgetRule::ratio, kShare, kLeast};
  plan::Selector selector = chosen_selector(read, "anchor-selector", read.choice("set", kSets), usual);
  const plan::Budget asked = read.budget(usual);
  if (asked.rule == plan::BudgetRule::ratio && asked.at_least == 1) {  // a share without a minimum has the paper's
    selector.budget.at_least = std::max(selector.budget.at_least, kLeast);
  }
  if (read.choice("pooling", kPooling) == "probability") return selector;
  plan::Term& term = selector.terms[0];
  if (term.source != plan::Source::probability) {
    read.refuse("pooling", "query", "an index pools scores its own way; leave the option out or anchor-selector=exact");
  }
  const bool counted =
      selector.budget.rule == plan::BudgetRule::tokens || selector.budget.rule == plan::BudgetRule::ratio;
  if (!counted) {
    read.refuse(
        "pooling", "query",
        fmt::format("--attn-budget {} needs probabilities; give tokens or a share", to_string(selector.budget)));
  }
  term.group = plan::GroupPooling::mean_query;
  if (selector.per == plan::SetPer::kv_head) term.source = plan::Source::dot;  // one query left: the order is q.k's
  return selector;
}

plan::Prefill make_prefill(const OptionReader& read, const plan::ModelShape& shape, const plan::Selector& selector) {
  const std::string_view asked = read.choice("prefill", kPrefill);
  const std::optional<int> tile = read.integer("tile", shape.group(), 65536, kAuto);
  const bool exact = !plan::is_index(selector.terms[0].source);
  const bool counted =
      selector.budget.rule == plan::BudgetRule::tokens || selector.budget.rule == plan::BudgetRule::ratio;
  const std::string_view why = exact ? "tiles need a budget in tokens or as a share" : "tiles need exact scores";
  if (asked == "sparse" && !(exact && counted))
    read.refuse("prefill", asked, fmt::format("{}; give prefill=dense", why));
  if (asked == "auto" && !(exact && counted)) read.warn(fmt::format("the prefill is dense: {}", why));
  if (asked == "dense" || !(exact && counted)) {
    if (tile) read.refuse("tile", *read.text("tile"), "the prefill is dense and has no tiles; leave the option out");
    return {};
  }
  return {.sparse = true, .tile_rows = tile.value_or(std::max(kTileRows, shape.group()))};
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("kascade", kOptions, options);
  plan::Plan plan = plan::dense_plan(shape);
  const Anchors anchors = choose_anchors(read, shape);
  plan.selectors.push_back(make_selector(read));
  const plan::Prefill prefill = make_prefill(read, shape, plan.selectors[0]);
  const bool identity = read.choice("head-map", kMaps) == "identity";
  const bool mapped = anchors.profiled && !identity && plan.selectors[0].per != plan::SetPer::layer;
  select_and_reuse(plan, anchors.layers, 0);
  for (int layer = 1; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      plan::Role& role = plan.role(layer, head);
      if (role.kind == plan::RoleKind::select) role.attends_set = true;
      if (role.kind == plan::RoleKind::reuse && mapped) role.reads.head = read.profile()->mapped_head(layer, head);
    }
  }
  tidy(plan);
  if (!plan.selectors.empty()) plan.prefill = prefill;
  return plan;
}

}  // namespace

Policy kascade_policy() {
  return {"kascade",
          "few anchor layers choose for the layers after them through a head map; prompts are sparse too (budget "
          "10%,min=128)",
          "Deshmukh et al., Kascade: A Practical Sparse Attention Method for Long-Context LLM Inference, 2025, arXiv "
          "2512.16391",
          {kOptions.begin(), kOptions.end()},
          make,
          {"kascade"}};
}

}  // namespace glimpse::policies
