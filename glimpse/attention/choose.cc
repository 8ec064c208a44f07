#include "glimpse/attention/choose.h"

#include <algorithm>
#include <limits>

#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::attention {

void set_pooling(const plan::Term& term, kernels::Choice& choice) {
  const bool probability = term.source == plan::Source::probability;
  switch (term.group) {
    case plan::GroupPooling::mean_probability:
      choice.pooling = kernels::Pooling::mean_probability;
      break;
    case plan::GroupPooling::max_probability:
      choice.pooling = kernels::Pooling::max_probability;
      break;
    case plan::GroupPooling::mean_score:
      choice.pooling = kernels::Pooling::mean_score;
      break;
    case plan::GroupPooling::max_score:
      choice.pooling = kernels::Pooling::max_score;
      break;
    case plan::GroupPooling::mean_query:  // the mean of q.k is the mean query's product with k
      choice.pooling = probability ? kernels::Pooling::probability_of_mean : kernels::Pooling::mean_score;
      break;
    case plan::GroupPooling::none:  // of one query head
      choice.pooling = probability ? kernels::Pooling::mean_probability : kernels::Pooling::mean_score;
      break;
  }
  choice.across = kernels::Across::as_group;
  if (term.heads == plan::HeadPooling::max) choice.across = kernels::Across::max;
  if (term.heads == plan::HeadPooling::mean) choice.across = kernels::Across::mean;
}

kernels::Choice choice_of(const plan::Selector& selector, std::size_t tokens) {
  const Always always = always_units(selector, tokens);
  const std::size_t units =
      (tokens + static_cast<std::size_t>(selector.block) - 1) / static_cast<std::size_t>(selector.block);
  kernels::Choice choice;
  set_pooling(selector.terms.front(), choice);
  choice.block = selector.block;
  choice.head_units = static_cast<std::int32_t>(always.head);
  choice.tail_units = static_cast<std::int32_t>(always.tail);
  choice.tail_counts = selector.counts_local ? 1 : 0;
  choice.value = selector.budget.value;
  switch (selector.budget.rule) {
    case plan::BudgetRule::tokens:
    case plan::BudgetRule::ratio: {
      const std::int64_t allowed =
          plan::budget_tokens(selector.budget, static_cast<std::int64_t>(tokens)) / selector.block;
      const auto forced = static_cast<std::int64_t>(always.head + (selector.counts_local ? units - always.tail : 0));
      choice.wanted = static_cast<std::int32_t>(std::max<std::int64_t>(0, allowed - forced));
      break;
    }
    case plan::BudgetRule::mass:
      choice.rule = kernels::ChoiceRule::mass;
      break;
    case plan::BudgetRule::threshold:
      choice.rule = kernels::ChoiceRule::threshold;
      break;
  }
  return choice;
}

Always always_units(const plan::Selector& selector, std::size_t tokens) {
  const auto block = static_cast<std::size_t>(selector.block);
  const std::size_t units = (tokens + block - 1) / block;
  const auto window = static_cast<std::size_t>(plan::window_tokens(selector, static_cast<std::int64_t>(tokens)));
  const std::size_t local = std::min(tokens, std::max<std::size_t>(window, 1));
  Always always;
  always.tail = (tokens - local) / block;
  always.head = std::min(always.tail, (static_cast<std::size_t>(selector.sink) + block - 1) / block);
  check(always.tail < units, "the current token is always in a set");
  return always;
}

void choose_before_tile(const plan::Selector& selector, std::int64_t budget, std::span<float> pooled,
                        SelectionScratch& scratch, std::vector<std::int32_t>& set) {
  const std::size_t tokens = pooled.size();
  const auto block = static_cast<std::size_t>(selector.block);
  std::span<float> units = pooled;
  if (block > 1) {
    units = std::span(scratch.units.data(), (tokens + block - 1) / block);
    kernels::block_max(pooled, selector.block, units);
  }
  constexpr float kFirst = std::numeric_limits<float>::infinity();
  const std::size_t sink = std::min(units.size(), (static_cast<std::size_t>(selector.sink) + block - 1) / block);
  const auto local = static_cast<std::size_t>(plan::window_tokens(selector, static_cast<std::int64_t>(tokens)));
  const std::size_t tail = local == 0 ? units.size() : (tokens - std::min(tokens, local)) / block;
  std::fill_n(units.begin(), sink, kFirst);
  std::fill(units.begin() + static_cast<std::ptrdiff_t>(tail), units.end(), kFirst);
  std::size_t wanted = static_cast<std::size_t>(budget) / block;
  if (!selector.counts_local) wanted += units.size() - std::max(sink, std::min(tail, units.size()));
  const std::size_t count =
      kernels::select_top_k(units, std::min(wanted, units.size()), scratch.chosen, scratch.workspace);
  set.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = static_cast<std::size_t>(scratch.chosen[i]) * block;
    for (std::size_t at = first; at < std::min(tokens, first + block); ++at) {
      set.push_back(static_cast<std::int32_t>(at));
    }
  }
}

void window_positions(const plan::Selector& window, std::int64_t tokens, std::vector<std::int32_t>& set) {
  set.clear();
  const std::int64_t sink = std::min<std::int64_t>(window.sink, tokens);
  const std::int64_t local = std::max(sink, tokens - plan::window_tokens(window, tokens));
  for (std::int64_t i = 0; i < sink; ++i) set.push_back(static_cast<std::int32_t>(i));
  for (std::int64_t i = local; i < tokens; ++i) set.push_back(static_cast<std::int32_t>(i));
}

}  // namespace glimpse::attention
