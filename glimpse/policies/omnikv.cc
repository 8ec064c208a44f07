// OmniKV: Hao, Zhu, Wang, Yu, Xin, Zheng, Ren, Guo, "OmniKV: Dynamic Context Selection for Efficient Long-Context
// LLMs", ICLR 2025 (filter layers choose for the layers after them).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr std::array kFilters{2, 8, 18};  // of 32 layers

const std::array<OptionHelp, 2> kOptions{{
    {"filters", "LAYER+LAYER...|auto", "auto",
     "the layers that select, such as 2+8+18; they, the layer after each, and layers 0 and 1 are dense; auto: the "
     "profile's, else 2, 8 and 18 of 32, scaled"},
    {"selector", kSelectorValues, "exact",
     "what filters choose by: one set by exact scores of all heads, or one for each KV head by another method's index",
     true},
}};

std::vector<int> filter_layers(const OptionReader& read, const plan::ModelShape& shape) {
  const plan::Profile* profile = read.profile();
  if (auto given = read.layers("filters", 0, shape.layers - 1, kAuto)) {
    read.leave_profile("filters are given, so the profile's are not used");
    return *given;
  }
  if (profile != nullptr) return profile->omnikv->filters;
  std::vector<int> guessed = scaled_layers(kFilters, shape.layers);
  read.warn_guess(fmt::format("filter layers are {}, by relative depth", fmt::join(guessed, ", ")));
  return guessed;
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("omnikv", kOptions, options);
  plan::Plan plan = plan::dense_plan(shape);
  const std::vector<int> filters = filter_layers(read, shape);
  const bool exact = read.choice("selector", kSelectorWords) == "exact";
  if (exact) read.counted_budget({}, "cuts by the largest probability over heads, which sums to no mass");
  plan::Selector selector =
      chosen_selector(read, "selector", exact ? "layer" : "kv-head", {plan::BudgetRule::tokens, 1024});
  if (exact) {
    selector.terms[0].group = plan::GroupPooling::max_probability;
    selector.terms[0].heads = plan::HeadPooling::max;
  }
  plan.selectors.push_back(std::move(selector));
  select_and_reuse(plan, filters, 0);
  for (int layer = 0; layer < shape.layers; ++layer) {
    const bool filter = std::binary_search(filters.begin(), filters.end(), layer);
    const bool after = std::binary_search(filters.begin(), filters.end(), layer - 1);
    if (!filter && (after || layer < kFirstSparse)) set_layer(plan, layer, {});
  }
  tidy(plan);
  return plan;
}

}  // namespace

Policy omnikv_policy() {
  return {"omnikv",
          "a few dense filter layers choose tokens, by the largest probability of any head, for the layers after them "
          "(budget 1024)",
          "Hao et al., OmniKV: Dynamic Context Selection for Efficient Long-Context LLMs, ICLR 2025",
          {kOptions.begin(), kOptions.end()},
          make,
          {"omnikv"}};
}

}  // namespace glimpse::policies
