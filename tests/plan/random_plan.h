// Valid plans over the whole vocabulary, the same for the same seed.
#pragma once

#include <cstdint>

#include "glimpse/plan/plan.h"

namespace glimpse::plan {

Plan random_plan(std::uint64_t seed);

}  // namespace glimpse::plan
