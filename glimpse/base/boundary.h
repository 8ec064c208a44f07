// Where text may be cut between tokens. `text` finds the class of each token, indices over keys (glimpse/kv/index) cut
// their chunks by it. A plain value; any thread.
#pragma once

#include <cstdint>

namespace glimpse {

/// Of a token's text the best delimiter, by LycheeCluster's priorities (appendix B; 1 best). `none` lies within a word.
enum class Boundary : std::uint8_t { section = 1, sentence = 2, clause = 3, space = 4, none = 5 };

}  // namespace glimpse
