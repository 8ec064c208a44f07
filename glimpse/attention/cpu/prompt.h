// Rows of a prompt: dense tiles, tiles that read a set, few rows against a long context, and what a plan observes of
// the prompt's attention.
// Inside attention/cpu only; see runner.h for threads.
#pragma once

#include "glimpse/attention/cpu/pass.h"

namespace glimpse::attention {

/// What the pass does with the entry's rows in all layers; then what it needs for one layer.
void open_prompt(Pass& pass, BatchEntry& entry);
void open_prompt_layer(Pass& pass, BatchEntry& entry, int layer);

/// The entry's items of the attend phase.
void add_prompt(Pass& pass, BatchEntry& entry, int index, int layer);

/// True when a prompt's end, or a correction, makes or mends indices of the layer.
bool grows_indices(Pass& pass, const BatchEntry& entry, int layer);

/// Items of the kind prefill.
void run_prompt(Pass& pass, const Call& call, const Item& item);

/// A split of an output of few rows, and what follows its last one.
void run_few_rows(Pass& pass, const Call& call, const Split& split);
void finish_few_rows(Pass& pass, const Call& call, const HeadOutput& output);

}  // namespace glimpse::attention
