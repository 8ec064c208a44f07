#include "bench/statistics.h"

#include <cmath>

namespace glimpse::bench {

Interval wilson(std::int64_t hits, std::int64_t count) {
  if (count == 0) return {};
  constexpr double z = 1.959963984540054;
  const auto n = static_cast<double>(count);
  const double share = static_cast<double>(hits) / n;
  const double centre = share + z * z / (2 * n);
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  const double scale = 1 + z * z / n;
  // Exact at the ends, where rounding would leave 1e-17.
  return {hits == 0 ? 0.0 : (centre - half) / scale, hits == count ? 1.0 : (centre + half) / scale};
}

}  // namespace glimpse::bench
