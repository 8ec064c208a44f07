// The table of a profile: what plans keep of dense attention's answers, and how long their tokens take. All are asked
// a few questions; those that may be taken are asked the rest (race.h). Runs the engine; one thread.
#pragma once

#include <vector>

#include "glimpse/calibrate/study.h"
#include "glimpse/calibrate/token_times.h"
#include "glimpse/plan/profile.h"

namespace glimpse::calibrate {

/// The rows and times of the plans go into the profile; the processor's name is left empty. What is measured is looked
/// up and kept in study.measured, the times that the race begins with among it.
void measure_rows(engine::Engine& engine, const Study& study, const std::vector<TimedPlan>& plans,
                  plan::Profile& profile, Progress& progress);

}  // namespace glimpse::calibrate
