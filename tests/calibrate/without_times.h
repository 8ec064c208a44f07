// A profile without what depends on times: its `speed`, and how many questions the race asked by them.
#pragma once

#include "glimpse/plan/profile.h"

namespace glimpse::calibrate {

inline plan::Profile without_times(plan::Profile profile) {
  profile.speed.reset();
  for (plan::Kept& row : profile.kept) {
    row.answers = row.dense = 0;
    row.asked.reset();
    row.left_out = false;
  }
  return profile;
}

}  // namespace glimpse::calibrate
