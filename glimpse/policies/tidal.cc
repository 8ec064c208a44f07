// TidalDecode: Yang, Zhang, Chen, Li, Jia, "TidalDecode: Fast and Accurate LLM Decoding with Position Persistent Sparse
// Attention", ICLR 2025, arXiv 2410.05076, section 3.1 and algorithm 1 (position persistent sparse attention), section
// 4.4 and appendix A.6 (the layer that re-selects).
#include <fmt/format.h>

#include <array>
#include <optional>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr int kSelect = 2;
constexpr double kBudget = 512;
constexpr std::array<std::string_view, 2> kReselectWords{"auto", "none"};

const std::array<OptionHelp, 4> kOptions{{
    {"set", kSetValues, "kv-head",
     "for whom a set is made: one per KV head by the mean probability of its group, one per query head as in the "
     "authors' code, or one per layer by the mean probability of all query heads"},
    {"select", "LAYER", "2", "the layer that selects first; the layers before it are dense"},
    {"reselect", "LAYER|auto|none", "auto",
     "the layer that selects again, behind `select`; auto: the profile's, else the paper's layer for this model, else "
     "round(13 L / 32) "
     "of L layers"},
    {"selector", kSelectorValues, "exact",
     "what the selecting layers choose by: exact scores, or another method's index over the keys", true},
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

std::optional<int> named_layer(const plan::ModelShape& shape) {
  const std::string name = plain_name(shape);
  for (const NamedLayer& row : kNamed) {
    const bool same = shape.architecture == row.architecture && shape.layers == row.layers;
    if (same && name.find(row.name) != std::string::npos) return row.reselect;
  }
  return std::nullopt;
}

// The second selecting layer, or nothing. Chosen by itself it must come after the first; small models have none.
std::optional<int> reselect_layer(const OptionReader& read, const plan::ModelShape& shape, int select) {
  const std::optional<int> given = read.layer("reselect", select + 1, shape.layers - 1, kReselectWords);
  const bool by_hand = given || read.text("reselect") == "none";
  if (by_hand) read.leave_profile("reselect is given, so the profile's layer is not used");
  if (by_hand) return given;
  if (read.profile() != nullptr) return profiled_reselect(read, read.profile()->tidal->reselect, select);
  const std::optional<int> named = named_layer(shape);
  const int layer = named.value_or(scaled_layer(13, shape.layers));
  if (!named) warn_of_reselect(read, shape, layer, select);
  return layer > select ? std::optional(layer) : std::nullopt;
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  plan::Plan plan = plan::dense_plan(shape);
  const OptionReader read("tidal", kOptions, options);
  const int select = read.layer("select", 0, shape.layers - 2, {}).value_or(kSelect);
  std::vector<int> selecting;
  if (select < shape.layers) selecting.push_back(select);
  if (const std::optional<int> reselect = reselect_layer(read, shape, select)) selecting.push_back(*reselect);
  plan.selectors.push_back(
      chosen_selector(read, "selector", read.choice("set", kSetWords), {plan::BudgetRule::tokens, kBudget}));
  select_and_reuse(plan, selecting, 0);
  tidy(plan);
  return plan;
}

}  // namespace

Policy tidal_policy() {
  return {"tidal",
          "two layers select tokens for all layers after them (budget 512; layers 0 and 1 dense)",
          "Yang et al., TidalDecode: Fast and Accurate LLM Decoding with Position Persistent Sparse Attention, ICLR "
          "2025, arXiv 2410.05076",
          {kOptions.begin(), kOptions.end()},
          make,
          {"tidal"}};
}

}  // namespace glimpse::policies
