// Makes the checksums of a damaged session file right again, so that tests and fuzzers reach what lies behind them.
#pragma once

#include <cstddef>
#include <span>

namespace glimpse::engine {

/// Header, table and sections of a file in memory get checksums that fit them. What does not fit in `file` is left as
/// it is.
void reseal_session(std::span<std::byte> file);

}  // namespace glimpse::engine
