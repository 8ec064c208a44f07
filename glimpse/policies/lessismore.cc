// LessIsMore: Yang, Zhang, Lai, Su, Jia, "Less Is More: Training-Free Sparse Attention with Global Locality for
// Efficient Reasoning", 2025, arXiv 2508.07101 (one set for all heads, merged rank by rank; a share of it is recent).
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "glimpse/policies/layers.h"
#include "glimpse/policies/selectors.h"

namespace glimpse::policies {
namespace {

constexpr double kLocalShare = 0.25;
constexpr int kSink = 4;
constexpr std::array<std::string_view, 2> kReselectWords{"auto", "none"};

const std::array<OptionHelp, 4> kOptions{{
    {"select", "LAYER|auto", "auto", "the layer that selects first; auto: 2 of 32, scaled, not before 2"},
    {"reselect", "LAYER|auto|none", "auto",
     "the layer that selects again, behind `select`; auto: the profile's, else 13 of 32, scaled"},
    {"local-share", "SHARE", "0.25",
     "share of the budget that is sink and recent window; --attn-local sets the window"},
    {"selector", kSelectorValues, "exact",
     "what the selecting layers choose by: one set of all heads' exact ranks, or one for each KV head by another "
     "method's index, with that one's sink and window",
     true},
}};

plan::Selector merged_ranks(const OptionReader& read) {
  plan::Selector selector;
  selector.per = plan::SetPer::layer;
  selector.block = read.block();
  selector.sink = read.sink(kSink);
  selector.local = read.local(0);
  const double share = read.number("local-share", 0, 0.9, kLocalShare);
  if (selector.local == 0) {
    selector.local_share = share;
  } else if (const auto text = read.text("local-share")) {
    read.refuse("local-share", *text, "--attn-local sets the window already; give one of the two");
  }
  selector.budget = read.counted_budget({plan::BudgetRule::tokens, 1024}, "merges ranks, which have no mass");
  selector.terms.push_back({plan::Source::dot, plan::GroupPooling::none, plan::HeadPooling::rank_merge});
  selector.budget = with_room(selector.budget, selector);
  return selector;
}

plan::Selector make_selector(const OptionReader& read) {
  plan::Selector chosen = chosen_selector(read, "selector", "kv-head", {plan::BudgetRule::tokens, 1024});
  const std::string_view name = read.choice("selector", kSelectorWords);
  if (name == "exact") return merged_ranks(read);
  if (const auto text = read.text("local-share")) {
    read.refuse("local-share", *text, fmt::format("selector={} has a window of its own; set --attn-local", name));
  }
  return chosen;
}

// The second selecting layer, or nothing.
std::optional<int> reselect_layer(const OptionReader& read, const plan::ModelShape& shape, int select) {
  const std::optional<int> given = read.layer("reselect", select + 1, shape.layers - 1, kReselectWords);
  const bool by_hand = given || read.text("reselect") == "none";
  if (by_hand) read.leave_profile("reselect is given, so the profile's layer is not used");
  if (by_hand) return given;
  if (read.profile() != nullptr) return profiled_reselect(read, read.profile()->lessismore->reselect, select);
  const int layer = scaled_layer(13, shape.layers);
  warn_of_reselect(read, shape, layer, select);
  return layer;
}

plan::Plan make(const plan::ModelShape& shape, const PolicyOptions& options) {
  const OptionReader read("lessismore", kOptions, options);
  plan::Plan plan = plan::dense_plan(shape);
  const int select =
      read.layer("select", 0, shape.layers - 2, kAuto).value_or(std::max(kFirstSparse, scaled_layer(2, shape.layers)));
  const int last = shape.layers - 1;
  const std::optional<int> reselect = reselect_layer(read, shape, select);
  std::vector<int> selecting;
  if (select < shape.layers) selecting.push_back(select);
  if (reselect && *reselect > select && *reselect <= last) selecting.push_back(*reselect);
  plan.selectors.push_back(make_selector(read));
  select_and_reuse(plan, selecting, 0);
  tidy(plan);
  return plan;
}

}  // namespace

Policy lessismore_policy() {
  return {
      "lessismore",
      "two dense layers select one set for all heads, merged rank by rank, a quarter of it recent (budget 1024)",
      "Yang et al., Less Is More: Training-Free Sparse Attention with Global Locality for Efficient Reasoning, 2025, "
      "arXiv 2508.07101",
      {kOptions.begin(), kOptions.end()},
      make,
      {"lessismore"}};
}

}  // namespace glimpse::policies
