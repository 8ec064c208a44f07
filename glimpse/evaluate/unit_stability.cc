#include "glimpse/evaluate/unit_stability.h"

#include <algorithm>
#include <utility>

namespace glimpse::evaluate {

Stability& Stability::operator+=(const Stability& other) {
  jaccard_sum += other.jaccard_sum;
  window_sum += other.window_sum;
  jaccards += other.jaccards;
  windows += other.windows;
  return *this;
}

std::optional<double> Stability::jaccard() const {
  if (jaccards == 0) return std::nullopt;
  return jaccard_sum / static_cast<double>(jaccards);
}

std::optional<double> Stability::window_hit() const {
  if (windows == 0) return std::nullopt;
  return window_sum / static_cast<double>(windows);
}

void UnitHistory::add(std::vector<std::int32_t> units) {
  if (!before_.empty()) {
    const auto in = [](const std::vector<std::int32_t>& list, std::int32_t unit) {
      return std::binary_search(list.begin(), list.end(), unit);
    };
    const std::vector<std::int32_t>& last = before_.front();
    const auto both = std::count_if(units.begin(), units.end(), [&](std::int32_t unit) { return in(last, unit); });
    const auto either = static_cast<std::ptrdiff_t>(units.size() + last.size()) - both;
    if (either > 0) {
      stability_.jaccard_sum += static_cast<double>(both) / static_cast<double>(either);
      ++stability_.jaccards;
    }
    const auto hits = std::count_if(units.begin(), units.end(), [&](std::int32_t unit) {
      return std::any_of(before_.begin(), before_.end(), [&](const auto& list) { return in(list, unit); });
    });
    if (!units.empty()) {
      stability_.window_sum += static_cast<double>(hits) / static_cast<double>(units.size());
      ++stability_.windows;
    }
  }
  before_.push_front(std::move(units));
  if (before_.size() > window_) before_.pop_back();
}

Stability stability(std::span<const std::vector<std::int32_t>> steps, int window) {
  UnitHistory history(window);
  for (const std::vector<std::int32_t>& units : steps) history.add(units);
  return history.stability();
}

}  // namespace glimpse::evaluate
