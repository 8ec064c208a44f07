#include <algorithm>
#include <cmath>

#include "tests/reference/methods.h"

namespace glimpse::methods {
namespace {

std::int64_t blocks_for(std::int64_t tokens, std::int64_t block) {
  return (tokens + block - 1) / block;
}

double slack_at(double cut, const Scores& scores) {
  double largest = 0;
  for (const double score : scores) {
    if (std::isfinite(score)) largest = std::max(largest, std::abs(score));
  }
  return kSlack * std::abs(cut) + kFloatSlack * largest;
}

/// By falling score; equal scores: the lower index.
Set by_score(const Scores& scores, Set order) {
  std::sort(order.begin(), order.end());
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  return order;
}

/// Which units the guide holds a token of.
std::vector<bool> units_of(const Set& set, std::int64_t units, std::int64_t block) {
  std::vector<bool> held(static_cast<std::size_t>(units));
  for (const std::int32_t i : set) {
    if (i >= 0 && i / block < units) held[static_cast<std::size_t>(i / block)] = true;
  }
  return held;
}

Set tokens_of(const std::vector<bool>& units, std::int64_t tokens, std::int64_t block) {
  Set set;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (units[static_cast<std::size_t>(i / block)]) set.push_back(static_cast<std::int32_t>(i));
  }
  return set;
}

/// The units that sink and local fill, and how many of them the budget pays for.
struct Fixed {
  std::vector<bool> units;
  std::int64_t paid = 0;
};

Fixed fixed_units(std::int64_t tokens, const Frame& frame) {
  Fixed fixed{std::vector<bool>(static_cast<std::size_t>(blocks_for(tokens, frame.block))), 0};
  const std::int64_t window = std::max<std::int64_t>(frame.local, 1);
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (i < frame.sink || i >= tokens - window) fixed.units[static_cast<std::size_t>(i / frame.block)] = true;
  }
  for (std::size_t unit = 0; unit < fixed.units.size(); ++unit) {
    const bool sink = static_cast<std::int64_t>(unit) * frame.block < frame.sink;
    if (fixed.units[unit] && (sink || frame.counts_local)) ++fixed.paid;
  }
  return fixed;
}

}  // namespace

std::int64_t floor_share(double share, std::int64_t tokens) {
  // The share that was written in decimals: 0.29 * 100 is 29, not 28.999999999999996.
  return static_cast<std::int64_t>(std::floor(share * static_cast<double>(tokens) + 1e-9));
}

Set best(const Scores& scores, const Set& candidates, std::int64_t count, const std::vector<bool>& preferred) {
  const Set order = by_score(scores, candidates);
  if (count <= 0) return {};
  if (count >= static_cast<std::int64_t>(order.size())) {
    Set all = order;
    std::sort(all.begin(), all.end());
    return all;
  }
  const double cut = scores[static_cast<std::size_t>(order[static_cast<std::size_t>(count - 1)])];
  const double slack = slack_at(cut, scores);
  Set chosen;
  for (const std::int32_t i : order) {
    if (scores[static_cast<std::size_t>(i)] > cut + slack) chosen.push_back(i);
  }
  for (const bool first : {true, false}) {
    for (const std::int32_t i : order) {
      const bool open = std::abs(scores[static_cast<std::size_t>(i)] - cut) <= slack;
      const bool wanted = i < static_cast<std::int32_t>(preferred.size()) && preferred[static_cast<std::size_t>(i)];
      if (open && wanted == first && static_cast<std::int64_t>(chosen.size()) < count) chosen.push_back(i);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

Scores block_maximum(const Scores& tokens, std::int64_t block) {
  Scores units(static_cast<std::size_t>(blocks_for(static_cast<std::int64_t>(tokens.size()), block)), -HUGE_VAL);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    double& unit = units[i / static_cast<std::size_t>(block)];
    unit = std::max(unit, tokens[i]);
  }
  return units;
}

namespace {

/// Smallest number of best units whose scores reach `least`.
std::int64_t reaching(const Scores& units, const Set& order, double least) {
  if (least <= 0) return 0;
  double sum = 0;
  for (std::size_t n = 0; n < order.size(); ++n) {
    sum += units[static_cast<std::size_t>(order[n])];
    if (sum >= least) return static_cast<std::int64_t>(n) + 1;
  }
  return static_cast<std::int64_t>(order.size());
}

}  // namespace

Set choose_units(const Scores& units, std::int64_t tokens, const Frame& frame, const Set& guide) {
  const auto count = static_cast<std::int64_t>(units.size());
  const Fixed fixed = fixed_units(tokens, frame);
  const std::vector<bool> held = units_of(guide, count, frame.block);
  const auto with = [&](const Set& chosen) {
    std::vector<bool> in = fixed.units;
    for (const std::int32_t unit : chosen) in[static_cast<std::size_t>(unit)] = true;
    return tokens_of(in, tokens, frame.block);
  };
  if (frame.rule == Rule::count) {
    Set rest;
    for (std::int32_t unit = 0; unit < count; ++unit) {
      if (!fixed.units[static_cast<std::size_t>(unit)]) rest.push_back(unit);
    }
    return with(best(units, rest, static_cast<std::int64_t>(frame.value) / frame.block - fixed.paid, held));
  }
  if (frame.rule == Rule::threshold) {
    Set chosen;
    for (std::int32_t unit = 0; unit < count; ++unit) {
      const double over = units[static_cast<std::size_t>(unit)] - frame.value;
      const bool open = std::abs(over) <= kSlack * frame.value;
      if (open ? held[static_cast<std::size_t>(unit)] : over > 0) chosen.push_back(unit);
    }
    return with(chosen);
  }
  // Mass: what sink and window hold of it counts, the best of the rest reach what is missing. Their number hangs on
  // rounding where the sum passes the value; the guide's number is taken if it can be.
  Set rest;
  double missing = frame.value;
  for (std::int32_t unit = 0; unit < count; ++unit) {
    const auto at = static_cast<std::size_t>(unit);
    if (!fixed.units[at]) rest.push_back(unit);
    if (fixed.units[at] && (frame.counts_local || unit * frame.block < frame.sink)) missing -= units[at];
  }
  const Set order = by_score(units, rest);
  const std::int64_t most = reaching(units, order, missing + frame.value * kSlack);
  for (std::int64_t n = reaching(units, order, missing - frame.value * kSlack); n <= most; ++n) {
    const Set set = with(best(units, rest, n, held));
    if (set == guide) return set;
  }
  return with(best(units, rest, reaching(units, order, missing), held));
}

Set choose(const Scores& tokens, const Frame& frame, const Set& guide) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (frame.block == 1) return choose_units(tokens, count, frame, guide);
  if (frame.rule != Rule::mass) return choose_units(block_maximum(tokens, frame.block), count, frame, guide);
  Scores sums(static_cast<std::size_t>(blocks_for(count, frame.block)));
  for (std::size_t i = 0; i < tokens.size(); ++i) sums[i / static_cast<std::size_t>(frame.block)] += tokens[i];
  return choose_units(sums, count, frame, guide);
}

std::int64_t quarter_window(std::int64_t budget, std::int64_t sink) {
  return std::max<std::int64_t>((budget + 3) / 4 - sink, 1);
}

Set rank_merge(const std::vector<Scores>& heads, const Frame& frame, const Set& guide) {
  const auto tokens = static_cast<std::int64_t>(heads.at(0).size());
  std::vector<bool> in = fixed_units(tokens, frame).units;
  std::int64_t left = static_cast<std::int64_t>(frame.value) - std::count(in.begin(), in.end(), true);
  const std::vector<bool> held = units_of(guide, tokens, 1);
  Set between;  // sink and window: what they hold has no rank
  for (std::int32_t i = 0; i < tokens; ++i) {
    if (!in[static_cast<std::size_t>(i)]) between.push_back(i);
  }
  std::vector<Set> orders;
  for (const Scores& scores : heads) {
    Set order = by_score(scores, between);
    // Neighbours nearer than rounding stand in the guide's order.
    for (std::size_t i = 1; i < order.size(); ++i) {
      const auto a = static_cast<std::size_t>(order[i - 1]), b = static_cast<std::size_t>(order[i]);
      if (scores[a] - scores[b] <= slack_at(scores[a], scores) && !held[a] && held[b])
        std::swap(order[i - 1], order[i]);
    }
    orders.push_back(std::move(order));
  }
  for (std::size_t rank = 0; left > 0 && rank < between.size(); ++rank) {
    for (const Set& order : orders) {
      const auto token = static_cast<std::size_t>(order[rank]);
      if (left > 0 && !in[token]) {
        in[token] = true;
        --left;
      }
    }
  }
  return tokens_of(in, tokens, 1);
}

}  // namespace glimpse::methods
