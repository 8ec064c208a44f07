#include "glimpse/train/choices.h"

#include <algorithm>
#include <numeric>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/tasks/random.h"

namespace glimpse::train {
namespace {

std::size_t gates_of(const plan::ModelShape& shape) {
  return static_cast<std::size_t>(shape.layers - 1) * static_cast<std::size_t>(shape.kv_heads);
}

}  // namespace

plan::RolesProfile roles_of(const plan::ModelShape& shape, std::span<const double> expected) {
  check(expected.size() == gates_of(shape), "a gate for each KV head behind layer 0");
  plan::RolesProfile roles;
  roles.probability.assign(static_cast<std::size_t>(shape.kv_heads), 1);
  roles.probability.insert(roles.probability.end(), expected.begin(), expected.end());
  return roles;
}

plan::RolesProfile strongest_roles(const plan::ModelShape& shape, std::span<const double> expected, int count) {
  std::vector<std::size_t> order(expected.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return expected[a] > expected[b]; });
  std::vector<double> chosen(expected.size());
  for (std::size_t i = 0; i < std::min(order.size(), static_cast<std::size_t>(count)); ++i) chosen[order[i]] = 1;
  return roles_of(shape, chosen);
}

int retrieval_heads(const plan::ModelShape& shape, const plan::RolesProfile& roles) {
  return static_cast<int>(std::count_if(roles.probability.begin() + shape.kv_heads, roles.probability.end(),
                                        [](double role) { return role > 0.5; }));
}

plan::RolesProfile random_roles(const plan::ModelShape& shape, int count, std::uint64_t seed) {
  evaluate::Random random(seed);
  std::vector<double> order(gates_of(shape));
  std::iota(order.begin(), order.end(), 1.0);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  return strongest_roles(shape, order, count);
}

plan::RolesProfile even_roles(const plan::ModelShape& shape, int count) {
  // Index by index through the layers, so that each index comes up as often and neighbours at other depths.
  std::vector<double> chosen(gates_of(shape));
  const int layers = shape.layers - 1;
  for (int i = 0; i < count; ++i) {
    const auto place =
        static_cast<int>((2 * std::int64_t{i} + 1) * layers * shape.kv_heads / (2 * std::int64_t{count}));
    chosen[static_cast<std::size_t>(place % layers * shape.kv_heads + place / layers)] = 1;
  }
  return roles_of(shape, chosen);
}

plan::RolesProfile scored_roles(const plan::ModelShape& shape, int count, std::span<const double> scores) {
  std::vector<double> best(gates_of(shape));
  for (int layer = 1; layer < shape.layers; ++layer) {
    for (int head = 0; head < shape.heads; ++head) {
      double& score = best[static_cast<std::size_t>((layer - 1) * shape.kv_heads + head / shape.group())];
      score = std::max(score, scores[static_cast<std::size_t>(layer * shape.heads + head)]);
    }
  }
  return strongest_roles(shape, best, count);
}

}  // namespace glimpse::train
