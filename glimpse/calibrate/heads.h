// LycheeDecode's retrieval heads without training: which heads should choose, so that every head is served best by the
// last one of its own index that chose. A pure function; any thread.
#pragma once

#include <vector>

#include "glimpse/calibrate/anchors.h"

namespace glimpse::calibrate {

/// [layer, KV head] 1 for a head that chooses: all of layer 0, and the `count` others for which the sum over heads of
/// what each keeps is the largest. A head reads the set of its own index in the nearest layer that chose; gains.at(b,
/// b, h, h) is what it keeps when it chooses itself.
std::vector<char> best_heads(const Gains& gains, int count);

}  // namespace glimpse::calibrate
