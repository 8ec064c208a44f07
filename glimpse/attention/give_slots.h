// How a pass begins on every device: each sequence gets slots for its rows, all of them or none, and what streams leave
// behind is freed.
#pragma once

#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/records.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention {

/// Rows that read every token that their heads keep.
bool reads_everything(const SequenceRows& rows);

/// Why a decoded or verified row read every token, where it did.
DenseReason dense_reason(const SequenceRows& rows);

/// True when all tokens up to the last of these rows count as prompt from now on: indices are made of them.
bool ends_prompt(const SequenceRows& rows);

/// Slots for the rows of every sequence; pages that are read are brought back, and what is corrected may be written.
/// Throws what the cache throws, and no sequence has more slots then. `marks` is space, kept between passes.
void give_slots(kv::Cache& cache, std::span<const SequenceRows> batch, std::vector<kv::Mark>& marks);

/// Frees whole pages that lie between the sink and the window of a streaming head, before position `before`. Whole
/// pages only: a page goes back to the pool when all of it is free, and a table without holes is read as two plain
/// ranges. For rows that decode and have their slots; `space` is kept between calls.
void forget_window(kv::Cache& cache, const SequenceRows& rows, plan::SlotId head, std::int64_t before,
                   std::vector<std::int32_t>& space);

}  // namespace glimpse::attention
