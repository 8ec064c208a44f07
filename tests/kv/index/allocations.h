// Counts the calls of operator new in this test program. Any thread.
#pragma once

namespace glimpse::kv::testing {

long allocations();

}  // namespace glimpse::kv::testing
