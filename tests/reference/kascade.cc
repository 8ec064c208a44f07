#include <algorithm>

#include "tests/reference/methods.h"

namespace glimpse::methods {

std::int64_t tile_budget(const Tile& tile) {
  return tile.fixed > 0 ? tile.fixed : std::max(tile.least, floor_share(tile.share, tile.start));
}

Set tile_set(const Tile& tile, const Rows& keys, const Set& guide) {
  Set before(static_cast<std::size_t>(tile.start));
  for (std::size_t i = 0; i < before.size(); ++i) before[i] = static_cast<std::int32_t>(i);
  if (tile.start <= tile_budget(tile)) return before;
  Scores pooled(before.size());
  for (std::size_t row = 0; row < tile.queries.size(); ++row) {
    const auto sees = static_cast<std::ptrdiff_t>(tile.start) + static_cast<std::ptrdiff_t>(row) + 1;
    const Rows visible(keys.begin(), keys.begin() + sees);
    for (const Scores& p : head_probabilities(tile.queries[row], visible)) {
      for (std::size_t i = 0; i < pooled.size(); ++i) pooled[i] += p[i];
    }
  }
  std::vector<bool> held(before.size());
  for (const std::int32_t i : guide) {
    if (i >= 0 && static_cast<std::size_t>(i) < held.size()) held[static_cast<std::size_t>(i)] = true;
  }
  return best(pooled, before, tile_budget(tile), held);
}

}  // namespace glimpse::methods
