#include <algorithm>
#include <cmath>

#include "tests/reference/methods.h"

namespace glimpse::methods {
namespace {

/// The `count` of `candidates` (positions) with the largest statistic.
Set largest(const Set& candidates, const Scores& statistic, std::int64_t count, const Set& guide) {
  std::vector<bool> held(statistic.size());
  for (const std::int32_t i : guide) {
    if (i >= 0 && static_cast<std::size_t>(i) < held.size()) held[static_cast<std::size_t>(i)] = true;
  }
  return best(statistic, candidates, count, held);
}

Set joined(Set a, const Set& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  return a;
}

}  // namespace

Set sink_and_window(std::int64_t tokens, std::int64_t sink, std::int64_t window) {
  Set set;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (i < sink || i >= tokens - window) set.push_back(static_cast<std::int32_t>(i));
  }
  return set;
}

Set keep_accumulated(const Set& live, const Scores& sums, std::pair<std::int64_t, std::int64_t> budget_recent,
                     const Set& guide) {
  const auto [budget, recent] = budget_recent;
  if (static_cast<std::int64_t>(live.size()) <= budget) return live;
  const auto middle = live.end() - static_cast<std::ptrdiff_t>(recent);
  return joined(Set(middle, live.end()), largest(Set(live.begin(), middle), sums, budget - recent, guide));
}

Set keep_probable(const Set& live, const Scores& probabilities, std::int64_t budget, const Set& guide) {
  if (static_cast<std::int64_t>(live.size()) <= budget) return live;
  const Set older(live.begin(), live.end() - 1);
  return joined({live.back()}, largest(older, probabilities, budget - 1, guide));
}

Set keep_stamped(const Set& live, const Stamps& stamps, const Set& guide) {
  Set prompt, generated;
  for (const std::int32_t i : live) (i < stamps.prompt ? prompt : generated).push_back(i);
  if (static_cast<std::int64_t>(generated.size()) <= stamps.budget) return live;
  const std::int32_t current = generated.back();
  generated.pop_back();
  return joined(joined(prompt, {current}), largest(generated, stamps.steps, stamps.budget - 1, guide));
}

UpperHalf upper_half(const Reading& reading) {
  Scores sorted = reading.probabilities;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  UpperHalf half;
  if (sorted.empty()) return half;
  const std::size_t count = sorted.size();
  const double last_in = sorted[count < 2 ? 0 : count / 2 - 1];
  const double first_out = sorted[std::min(count - 1, (count + 1) / 2)];
  for (std::size_t i = 0; i < count; ++i) {
    const double p = reading.probabilities[i];
    const double slack = kSlack * p + kFloatSlack * sorted.front();
    if (p > first_out + slack && p >= last_in) {
      half.sure.push_back(reading.tokens[i]);
    } else if (p >= last_in - slack || p > first_out) {
      half.open.push_back(reading.tokens[i]);
    }
  }
  return half;
}

Row compensated_attention(const Row& query, std::pair<const Rows*, const Rows*> keys_values, const Set& set,
                          const Set& dropped) {
  const auto& [keys, values] = keys_values;
  const double root = std::sqrt(static_cast<double>(query.size()));
  Scores logits;
  Rows rows;
  for (const std::int32_t i : set) {
    logits.push_back(dot(query, keys->at(static_cast<std::size_t>(i))) / root);
    rows.push_back(values->at(static_cast<std::size_t>(i)));
  }
  if (!dropped.empty()) {
    Rows dropped_keys, dropped_values;
    for (const std::int32_t i : dropped) {
      dropped_keys.push_back(keys->at(static_cast<std::size_t>(i)));
      dropped_values.push_back(values->at(static_cast<std::size_t>(i)));
    }
    // Its weight is that of as many tokens as were dropped: n exp(s) = exp(s + log n).
    logits.push_back(dot(query, mean(dropped_keys)) / root + std::log(static_cast<double>(dropped.size())));
    rows.push_back(mean(dropped_values));
  }
  const Scores weights = softmax(logits);
  Row out(rows.at(0).size());
  for (std::size_t n = 0; n < rows.size(); ++n) {
    for (std::size_t x = 0; x < out.size(); ++x) out[x] += weights[n] * rows[n][x];
  }
  return out;
}

}  // namespace glimpse::methods
