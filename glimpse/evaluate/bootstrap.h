// How sure a mean is: the percentile bootstrap. Any thread.
#pragma once

#include <span>
#include <vector>

namespace glimpse::evaluate {

struct Interval {
  double low = 0, high = 0;
};

/// The 95 % interval of the mean of the groups' means: each group is drawn anew from its own values, 2,000 times,
/// always by the same numbers. Values that are all equal give a point, however few they are. Empty groups do not count;
/// {0, 0} of nothing.
Interval bootstrap(std::span<const std::vector<double>> groups);

}  // namespace glimpse::evaluate
