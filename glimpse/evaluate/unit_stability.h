// How much the units of an index (pages, chunks, clusters) that a head chose stay the same from step to step
// (LycheeCluster, appendix D, equations 3 and 4). Own their lists; one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

namespace glimpse::evaluate {

/// w of the paper.
inline constexpr int kStabilityWindow = 32;

/// Sums over the steps that have a step before them and chose something, of one list of units or of many.
struct Stability {
  double jaccard_sum = 0, window_sum = 0;
  std::int64_t jaccards = 0, windows = 0;
  Stability& operator+=(const Stability& other);
  /// Mean of |S_t and S_(t-1)| / |S_t or S_(t-1)|; a step where neither chose a unit does not count.
  std::optional<double> jaccard() const;
  /// Mean of the share of S_t that is in one of the `window` steps before it, or of those that there are.
  std::optional<double> window_hit() const;
};

/// The steps of one list of units, one after the other.
class UnitHistory {
 public:
  explicit UnitHistory(int window = kStabilityWindow) : window_(static_cast<std::size_t>(window)) {}
  /// The next step's units, ascending, each once.
  void add(std::vector<std::int32_t> units);
  /// A step without a choice (all was read): the next one has no step before it.
  void interrupt() { before_.clear(); }
  const Stability& stability() const { return stability_; }

 private:
  std::size_t window_;
  std::deque<std::vector<std::int32_t>> before_;  ///< the last steps, the latest first; `window_` at most
  Stability stability_;
};

/// Of `steps` [steps][units], each ascending, as if added one by one.
Stability stability(std::span<const std::vector<std::int32_t>> steps, int window = kStabilityWindow);

}  // namespace glimpse::evaluate
