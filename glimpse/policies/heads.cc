#include "glimpse/policies/heads.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace glimpse::policies {
namespace {

std::size_t at(int layer, int head, int heads) {
  return static_cast<std::size_t>(layer) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(head);
}

// Indices of the `count` largest values among layers [first_layer, L); equal ones: the lower.
std::vector<std::size_t> strongest(const std::vector<double>& values, std::size_t first, std::size_t count) {
  std::vector<std::size_t> order(values.size() - first);
  std::iota(order.begin(), order.end(), first);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  order.resize(std::min(order.size(), count));
  return order;
}

// A KV head retrieves as well as the best query head of its group.
std::vector<double> kv_scores(const plan::RetrievalProfile& profile, const plan::ModelShape& shape) {
  std::vector<double> scores(at(shape.layers, 0, shape.kv_heads));
  for (int layer = 0; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.heads; ++head) {
      double& score = scores[at(layer, head / shape.group(), shape.kv_heads)];
      score = std::max(score, profile.scores[at(layer, head, shape.heads)]);
    }
  }
  return scores;
}

// How many heads; nothing: as many as the profile's roles hold above 0.5, unless the method's own number is of the
// strongest.
std::optional<int> head_count(const OptionReader& read, const plan::ModelShape& shape, const RetrievalChoice& choice) {
  const int all = shape.layers * shape.kv_heads;
  const std::optional<plan::Budget> given = read.count("retrieval", kAuto);
  const plan::Profile* profile = read.profile();
  const bool scores = profile != nullptr && profile->retrieval && (choice.scores_first || !profile->roles);
  if (!given && profile != nullptr && !scores && !choice.scores_first) return std::nullopt;
  double wanted = choice.share * all;
  if (given) {
    wanted = given->rule == plan::BudgetRule::tokens ? given->value : given->value * all;
    if (wanted > all) {
      read.refuse("retrieval", *read.text("retrieval"),
                  fmt::format("the model has {} KV heads; give at most that", all));
    }
    if (std::round(wanted) < choice.counted_before) {
      read.refuse("retrieval", *read.text("retrieval"),
                  fmt::format("the {} KV heads of layer 0 are retrieval heads and in that number; give {} or more, or "
                              "--attn-opt first-layer=extra",
                              choice.counted_before, choice.counted_before));
    }
  }
  const int most = (shape.layers - std::min(choice.first_layer, shape.layers)) * shape.kv_heads;
  return std::clamp(static_cast<int>(std::round(wanted)) - choice.counted_before, 0, most);
}

}  // namespace

std::vector<char> retrieval_kv_heads(const OptionReader& read, const plan::ModelShape& shape,
                                     const RetrievalChoice& choice) {
  std::vector<char> chosen(at(shape.layers, 0, shape.kv_heads));
  const std::size_t first = std::min(chosen.size(), at(choice.first_layer, 0, shape.kv_heads));
  const std::optional<int> count = head_count(read, shape, choice);
  const plan::Profile* profile = read.profile();
  if (profile != nullptr) {
    const bool scores = profile->retrieval && (choice.scores_first || !profile->roles);
    const std::vector<double> values = scores ? kv_scores(*profile->retrieval, shape) : profile->roles->probability;
    if (!count) {
      for (std::size_t i = first; i < chosen.size(); ++i) chosen[i] = values[i] > 0.5 ? 1 : 0;
      return chosen;
    }
    for (const std::size_t i : strongest(values, first, static_cast<std::size_t>(*count))) chosen[i] = 1;
    return chosen;
  }
  // Head by head through the layers, so that each index comes up as often and neighbours at other depths.
  const int layers = shape.layers - std::min(choice.first_layer, shape.layers);
  for (int i = 0; i < *count; ++i) {
    const auto place =
        static_cast<int>((2 * std::int64_t{i} + 1) * layers * shape.kv_heads / (2 * std::int64_t{*count}));
    chosen[at(choice.first_layer + place % layers, place / layers, shape.kv_heads)] = 1;
  }
  read.warn_guess(fmt::format("retrieval heads are an even spread of {:.3g} % of the KV heads",
                              100.0 * (*count + choice.counted_before) / static_cast<double>(chosen.size())));
  return chosen;
}

std::vector<std::vector<int>> retrieval_query_heads(const OptionReader& read, const plan::ModelShape& shape,
                                                    int first_layer, int count) {
  std::vector<std::vector<int>> chosen(static_cast<std::size_t>(shape.layers));
  const int layers = std::max(shape.layers - first_layer, 0);
  count = std::min(count, layers * shape.heads);
  if (count == 0) return chosen;
  if (read.profile() != nullptr) {
    const std::vector<double>& scores = read.profile()->retrieval->scores;
    for (const std::size_t i : strongest(scores, at(first_layer, 0, shape.heads), static_cast<std::size_t>(count))) {
      chosen[i / static_cast<std::size_t>(shape.heads)].push_back(static_cast<int>(i) % shape.heads);
    }
  } else {
    for (int i = 0; i < count; ++i) {
      const auto depth = static_cast<int>((2 * std::int64_t{i} + 1) * layers / (2 * std::int64_t{count}));
      chosen[static_cast<std::size_t>(first_layer + depth)].push_back(0);
    }
    // Within a layer evenly spread; from layer to layer shifted by the golden section, so that no index is favoured.
    int turn = 0;
    for (std::vector<int>& heads : chosen) {
      if (heads.empty()) continue;
      const double shift = std::fmod(0.5 + 0.6180339887498949 * turn++, 1.0);
      const auto number = static_cast<double>(heads.size());
      for (std::size_t j = 0; j < heads.size(); ++j) {
        heads[j] = static_cast<int>((static_cast<double>(j) + shift) * shape.heads / number);
      }
    }
    read.warn_guess(fmt::format("{} retrieval heads are evenly spread", count));
  }
  for (std::vector<int>& heads : chosen) std::sort(heads.begin(), heads.end());
  return chosen;
}

OptionHelp retrieval_option(std::string_view default_help) {
  return {"retrieval", "N|X%|auto", "auto", default_help};
}

}  // namespace glimpse::policies
