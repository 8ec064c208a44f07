// TidalDecode: Yang, Zhang, Chen, Li, Jia, "TidalDecode: Fast and Accurate LLM Decoding with Position Persistent Sparse
// Attention", ICLR 2025, arXiv 2410.05076, section 3.1 and algorithm 1 (position persistent sparse attention), section
// 4.4 and appendix A.6 (the layer that re-selects).
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "glimpse/policies/options.h"

namespace glimpse::policies {
namespace {

constexpr int kSelect = 2;
constexpr double kBudget = 512;
constexpr std::array<std::string_view, 3> kSets{"kv-head", "query-head", "layer"};
constexpr std::array<std::string_view, 2> kReselectWords{"auto", "none"};

const std::array<OptionHelp, 3> kOptions{{
    {"set", "kv-head|query-head|layer", "kv-head",
     "for whom a set is made: one per KV head by the mean probability of its group, one per query head as in the "
     "authors' code, or one per layer by the mean probability of all query heads"},
    {"select", "LAYER", "2", "the layer that selects first; the layers before it are dense"},
    {"reselect", "LAYER|auto|none", "auto",
     "the layer that selects again; auto: the paper's layer for this model, else round(13 L / 32) of L layers"},
}};

// The paper's best layer by model; the 72B and 7B Qwen rows are the settings under which EvoSparse measured it.
struct NamedLayer {
  std::string_view name;  ///< in the model's name, lower case, letters and digits only
  std::string_view architecture;
  int layers;
  int reselect;
};
constexpr std::array kNamed{
    NamedLayer{"llama27b", "llama", 32, 7},       NamedLayer{"llamav2", "llama", 32, 7},
    NamedLayer{"longchat7b", "llama", 32, 7},     NamedLayer{"llama38b", "llama", 32, 13},
    NamedLayer{"llama318b", "llama", 32, 13},     NamedLayer{"llama323b", "llama", 28, 12},
    NamedLayer{"llama370b", "llama", 80, 14},     NamedLayer{"qwen25math7b", "qwen2", 28, 13},
    NamedLayer{"qwen25math72b", "qwen2", 80, 33},
};

int paper_layer(const plan::ModelShape& shape) {
  std::string name;
  for (const char c : shape.model_name) {
    if (c >= 'A' && c <= 'Z') name += static_cast<char>(c - 'A' + 'a');
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) name += c;
  }
  for (const NamedLayer& row : kNamed) {
    const bool same = shape.architecture == row.architecture && shape.layers == row.layers;
    if (same && name.find(row.name) != std::string::npos) return row.reselect;
  }
  return static_cast<int>(std::round(13.0 * shape.layers / 32.0));
}

// The second selecting layer, or nothing. Chosen by itself it must come after the first; small models have none.
std::optional<int> reselect_layer(const OptionReader& read, const plan::ModelShape& shape, int select) {
  const std::optional<int> given = read.layer("reselect", select, shape.layers - 1, kReselectWords);
  if (given) return *given > select ? given : std::nullopt;
  if (read.text("reselect") == "none") return std::nullopt;
  const int layer = paper_layer(shape);
  return layer > select ? std::optional<int>(layer) : std::nullopt;
}

plan::Selector make_selector(const OptionReader& read) {
  plan::Selector selector;
  selector.block = read.block();
  selector.sink = read.sink(0);
  selector.local = read.local(0);
  selector.budget = read.budget({plan::BudgetRule::tokens, kBudget});
  plan::Term term{plan::Source::probability, plan::GroupPooling::mean_probability};
  const std::string_view set = read.choice("set", kSets);
  if (set == "layer") {
    selector.per = plan::SetPer::layer;
    term.heads = plan::HeadPooling::mean;
  } else if (set == "query-head") {
    // Softmax keeps the order inside one query head, so counted sets need only q.k.
    const bool counted =
        selector.budget.rule == plan::BudgetRule::tokens || selector.budget.rule == plan::BudgetRule::ratio;
    selector.per = plan::SetPer::query_head;
    term.source = counted ? plan::Source::dot : plan::Source::probability;
    term.group = plan::GroupPooling::none;
  }
  selector.terms.push_back(std::move(term));
  selector.budget = with_room(selector.budget, selector);
  return selector;
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  plan::Plan plan = plan::dense_plan(shape);
  const OptionReader read("tidal", kOptions, options);
  const int layers = shape.layers;
  const int select = read.layer("select", 0, layers - 2, {}).value_or(kSelect);
  const std::optional<int> reselect = reselect_layer(read, shape, select);
  plan.selectors.push_back(make_selector(read));
  const bool one_slot = plan.selectors[0].per == plan::SetPer::layer;
  bool sparse = false;
  for (int layer = select; layer < layers; ++layer) {
    const bool selects = layer == select || layer == reselect;
    // A set that no layer would read is not made: the layer is dense.
    const bool read_later = layer + 1 < layers && layer + 1 != reselect;
    if (selects && !read_later) continue;
    sparse = true;
    const int source = reselect && layer > *reselect ? *reselect : select;
    for (int head = 0; head < shape.kv_heads; ++head) {
      plan::Role& role = plan.role(layer, head);
      if (selects) {
        role.kind = plan::RoleKind::select;
        role.selector = 0;
      } else {
        role.kind = plan::RoleKind::reuse;
        role.reads = {source, one_slot ? 0 : head};
      }
    }
  }
  if (!sparse) {
    // Too few layers to reuse anything. Bad flags are refused all the same: the selector is checked in layer 0.
    plan::Plan probe = plan;
    for (int head = 0; head < shape.kv_heads; ++head) {
      probe.role(0, head) = {.kind = plan::RoleKind::select, .selector = 0};
    }
    validate(probe);
    plan.selectors.clear();
  }
  return plan;
}

}  // namespace

Policy tidal_policy() {
  return {"tidal",
          "two layers select tokens for all layers after them (budget 512; layers 0 and 1 dense)",
          "Yang et al., TidalDecode: Fast and Accurate LLM Decoding with Position Persistent Sparse Attention, ICLR "
          "2025, arXiv 2410.05076",
          {kOptions.begin(), kOptions.end()},
          make};
}

}  // namespace glimpse::policies
