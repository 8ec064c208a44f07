#include "glimpse/calibrate/heads.h"

#include <algorithm>
#include <limits>

#include "glimpse/base/error.h"

namespace glimpse::calibrate {

std::vector<char> best_heads(const Gains& gains, int count) {
  const int layers = gains.layers, heads = gains.kv_heads;
  check(count >= 0 && count <= (layers - 1) * heads, "heads behind layer 0");
  // For each index of a head: the best layers to choose in, for every number of them.
  std::vector<std::vector<std::vector<int>>> chosen(static_cast<std::size_t>(heads));  // [head][number - 1]
  std::vector<std::vector<double>> worth(chosen.size());
  for (int head = 0; head < heads; ++head) {
    std::vector<double> table(static_cast<std::size_t>(layers) * static_cast<std::size_t>(layers));
    for (int a = 0; a < layers; ++a) {
      for (int b = a; b < layers; ++b) table[static_cast<std::size_t>(a * layers + b)] = gains.at(a, b, head, head);
    }
    for (int number = 1; number <= layers; ++number) {
      auto& of_head = chosen[static_cast<std::size_t>(head)];
      of_head.push_back(best_anchors(table, layers, number));
      worth[static_cast<std::size_t>(head)].push_back(total_gain(table, layers, of_head.back()));
    }
  }
  // How many for each index: best[head][n] of the first heads with n chosen ones behind layer 0.
  const auto ends = static_cast<std::size_t>(count) + 1;
  std::vector<double> best(ends, -std::numeric_limits<double>::infinity());
  best[0] = 0;
  std::vector<std::vector<std::size_t>> taken;
  for (const std::vector<double>& of_head : worth) {
    std::vector<double> next(ends, -std::numeric_limits<double>::infinity());
    std::vector<std::size_t> take(ends, 0);
    for (std::size_t n = 0; n < ends; ++n) {
      for (std::size_t more = 0; more < of_head.size() && more <= n; ++more) {
        const double sum = best[n - more] + of_head[more];
        if (sum <= next[n]) continue;
        next[n] = sum;
        take[n] = more;
      }
    }
    best = std::move(next);
    taken.push_back(std::move(take));
  }
  std::vector<char> roles(static_cast<std::size_t>(layers) * static_cast<std::size_t>(heads), 0);
  auto left = static_cast<std::size_t>(count);
  for (int head = heads - 1; head >= 0; --head) {
    const std::size_t more = taken[static_cast<std::size_t>(head)][left];
    for (const int layer : chosen[static_cast<std::size_t>(head)][more]) {
      roles[static_cast<std::size_t>(layer * heads + head)] = 1;
    }
    left -= more;
  }
  return roles;
}

}  // namespace glimpse::calibrate
