// What flows back into a sequence's heat (EvoSparse, section 3.1): h <- decay * h + what a step's rows gave to each
// block. The same on every device, which brings the sums. For sequences whose state has heat; one thread at a time for
// a sequence.
#pragma once

#include <span>

#include "glimpse/attention/batch.h"

namespace glimpse::attention {

/// Before a prompt's rows are observed: each of them is a step of the heat, so what was there fades by as many.
void fade_heat(const SequenceRows& rows);
/// When they are: what they gave to each block of a layer, or of all layers together, summed over all query heads.
void add_prompt_heat(const SequenceRows& rows, int layer, std::span<const double> sums);
/// What a decoded row gave. A draft's is kept until it is committed.
void add_step_heat(const SequenceRows& rows, HeatGains gains);

}  // namespace glimpse::attention
