// How much of a head's softmax mass its set captures: known for free where the set was chosen from exact scores of all
// keys, and measured beside the step where somebody audits.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// By the thread that chose the head's set, which is published: its scores of all tokens are still there.
void note_coverage(Pass& pass, BatchEntry& entry, plan::SlotId at, const HeadScores& head, ThreadScratch& thread);

/// Attend phase, one item a head: the truth about what the head reads in this step.
void add_audit(Pass& pass, BatchEntry& entry, int index);
void run_audit(Pass& pass, const Call& call, const Item& item);

/// After the pass, in the order of layers and heads, whoever computed them.
void end_coverage(BatchEntry& entry);

}  // namespace glimpse::attention
