#include "glimpse/evaluate/bootstrap.h"

#include <algorithm>
#include <random>

namespace glimpse::evaluate {
namespace {

constexpr std::size_t kDraws = 2000;

}  // namespace

Interval bootstrap(std::span<const std::vector<double>> groups) {
  std::mt19937_64 random(1);
  const auto full = std::count_if(groups.begin(), groups.end(), [](const auto& group) { return !group.empty(); });
  if (full == 0) return {};
  std::vector<double> means(kDraws, 0);
  for (double& mean : means) {
    for (const std::vector<double>& group : groups) {
      double sum = 0;
      for (std::size_t i = 0; i < group.size(); ++i) sum += group[random() % group.size()];
      if (!group.empty()) mean += sum / static_cast<double>(group.size()) / static_cast<double>(full);
    }
  }
  std::sort(means.begin(), means.end());
  return {means[kDraws / 40], means[kDraws - 1 - kDraws / 40]};
}

}  // namespace glimpse::evaluate
