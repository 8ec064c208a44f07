// How a prompt's rows lie in tiles (Program::tile_tokens). Functions of their arguments, which own nothing; any
// thread.
#pragma once

#include <cstdint>

#include "glimpse/attention/batch.h"

namespace glimpse::attention::cuda {

/// The position where a tile of these rows begins.
std::int64_t start_of(const SequenceRows& rows, int tile);
int tiles_of(const SequenceRows& rows);
/// True for a prompt's rows some of whose tiles read a part of what lies before them.
bool reads_tiles(const SequenceRows& rows);

}  // namespace glimpse::attention::cuda
