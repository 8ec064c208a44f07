// Whether a step's answers are right, before it is measured: every output against the reference kernels over what its
// head says it read, and the softmax mass of what selecting heads chose against the best of that size. One thread.
#pragma once

#include "bench/step_bed.h"
#include "glimpse/evaluate/set_quality.h"

namespace glimpse::bench {

/// Throws InternalError when an output of the bed's last step, a step of `plan` (its number: `number`), is not the
/// reference's over `reads`. Plan 0 of the bed reads everything and has taken the step's token: keys and values come
/// from it. Keys that are made from singular vectors are near, not equal: these outputs may be off by half.
void check_outputs(const StepBed& bed, int number, const plan::Plan& plan, int layer,
                   const std::vector<HeadRead>& reads);

/// Of all heads of a layer that read a set.
evaluate::SetQuality layer_quality(const StepBed& bed, int layer, const std::vector<HeadRead>& reads);

}  // namespace glimpse::bench
