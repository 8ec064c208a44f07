// What flows back after attending: the probabilities of what was read, into heat and into the statistics that evicting
// methods decide by.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// What one output read. By the thread that finished it.
void feed(Pass& pass, const Call& call, BatchEntry& entry, const HeadOutput& output);

/// EvoSparse, section 3.1: h <- lambda h + s, s the mean over the layers and heads that read the block. After the pass.
void end_feedback(Pass& pass, BatchEntry& entry);

}  // namespace glimpse::attention
