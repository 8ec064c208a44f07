// Reading single rows of the cache as floats: for tests, traces and people. Any thread while nobody changes
// tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kv/cache.h"

namespace glimpse::kv {

/// K (or V) of one token of one head, [d]. Throws UserError when the head holds no such token.
std::vector<float> key_at(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t position);
std::vector<float> value_at(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t position);

/// K of the first tokens of a head that forgot none, [tokens, d]: a page is read once. Throws UserError when the head
/// holds fewer.
std::vector<float> keys_of(const Cache& cache, SequenceId sequence, int layer, int head, std::int64_t tokens);

/// Positions that the head still holds, ascending.
std::vector<std::int32_t> live_positions(const Cache& cache, SequenceId sequence, int layer, int head);

}  // namespace glimpse::kv
