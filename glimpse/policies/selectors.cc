#include "glimpse/policies/selectors.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"

namespace glimpse::policies {
namespace {

using plan::GroupPooling;
using plan::Source;

// What each paper sets; flags win.
struct IndexKind {
  std::string_view name;
  Source source;
  int block;
  int sink;
  int local;
  bool counts_local;
};
constexpr std::array kKinds{
    IndexKind{"quest", Source::page_bounds, 16, 0, 0, true},
    IndexKind{"lychee-cluster", Source::chunk_tree, 1, 16, 128, true},
    IndexKind{"clusterkv", Source::token_clusters, 1, 16, 0, false},
    IndexKind{"arkvale", Source::page_bounds, 32, 0, 0, true},
    IndexKind{"shadowkv", Source::landmarks, 8, 0, 32, false},
};

}  // namespace

plan::Selector exact_selector(const OptionReader& read, std::string_view set, const plan::Budget& budget) {
  plan::Selector selector;
  selector.block = read.block();
  selector.sink = read.sink(0);
  selector.local = read.local(0);
  selector.budget = read.budget(budget);
  plan::Term term{Source::probability, GroupPooling::mean_probability};
  if (set == "layer") {
    selector.per = plan::SetPer::layer;
    term.heads = plan::HeadPooling::mean;
  } else if (set == "query-head") {
    const bool counted =
        selector.budget.rule == plan::BudgetRule::tokens || selector.budget.rule == plan::BudgetRule::ratio;
    selector.per = plan::SetPer::query_head;
    term.source = counted ? Source::dot : Source::probability;
    term.group = GroupPooling::none;
  }
  selector.terms.push_back(std::move(term));
  selector.budget = with_room(selector.budget, selector);
  return selector;
}

plan::Selector index_selector(const OptionReader& read, std::string_view name, const plan::Budget& budget) {
  const auto kind = std::find_if(kKinds.begin(), kKinds.end(), [name](const IndexKind& k) { return k.name == name; });
  check(kind != kKinds.end(), "a method with an index");
  plan::Selector selector;
  selector.block = read.block(kind->block);
  selector.sink = read.sink(kind->sink);
  selector.local = read.local(kind->local);
  selector.counts_local = kind->counts_local;
  selector.terms.push_back({kind->source, GroupPooling::max_score});
  selector.budget =
      read.counted_budget(budget, fmt::format("selects by {}'s index, which knows no probabilities", name));
  if (name == "quest" && selector.block > 0) {  // Quest never reads fewer than three pages
    const int least = 3 * std::min(selector.block, 1 << 16);
    if (selector.budget.rule == plan::BudgetRule::tokens && selector.budget.value < least) {
      throw UserError(
          fmt::format("policy '{}': Quest reads at least 3 pages of {} tokens; give --attn-budget {} or more, "
                      "or a smaller --attn-block",
                      read.policy(), selector.block, least));
    }
    if (selector.budget.rule == plan::BudgetRule::ratio) {
      selector.budget.at_least = std::max(selector.budget.at_least, least);
    }
  }
  selector.budget = with_room(selector.budget, selector);
  return selector;
}

plan::Selector chosen_selector(const OptionReader& read, std::string_view key, std::string_view set,
                               const plan::Budget& budget) {
  const std::string_view name = read.choice(key, kSelectorWords);
  if (name == "exact") return exact_selector(read, set, budget);
  plan::Selector selector = index_selector(read, name, budget);
  if (set == "layer") read.refuse(key, name, "an index belongs to a KV head; give set=kv-head or set=query-head");
  if (set == "query-head") per_query_head(selector);
  return selector;
}

void per_query_head(plan::Selector& selector) {
  selector.per = plan::SetPer::query_head;
  for (plan::Term& term : selector.terms) term.group = GroupPooling::none;
}

plan::Selector stream_selector(const OptionReader& read, int sink, const plan::Budget& budget) {
  plan::Selector selector;
  selector.sink = read.sink(sink);
  selector.budget = read.budget(budget);
  if (selector.budget.rule == plan::BudgetRule::tokens) {
    if (!(selector.budget.value > selector.sink)) {
      throw UserError(
          fmt::format("policy '{}': a budget of {} has no room for {} sink tokens and the current one; "
                      "give --attn-budget {} or more, or a smaller --attn-sink",
                      read.policy(), to_string(selector.budget), selector.sink, std::int64_t{selector.sink} + 1));
    }
    selector.local = static_cast<int>(std::min(selector.budget.value, 1e9)) - selector.sink;
  } else if (selector.budget.rule == plan::BudgetRule::ratio) {
    selector.budget = with_room(selector.budget, selector);
  } else {
    throw UserError(
        fmt::format("policy '{}' computes no scores, so --attn-budget {} has no meaning for it; "
                    "give tokens (1024) or a share (10%)",
                    read.policy(), to_string(selector.budget)));
  }
  return selector;
}

}  // namespace glimpse::policies
