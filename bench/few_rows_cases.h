// The last few rows of a sequence against all keys: cases of the attention benchmark. Holds the cache by shared
// pointer; cases run on any threads.
#pragma once

#include <string>
#include <vector>

#include "bench/bench_cache.h"

namespace glimpse::bench {

struct FewRows {
  int rows = 0;
  bool verify = false;  ///< with the bits of decoding, as lossless decoding verifies; else as rows of a prompt
};

/// What is measured for a shape in a context of so many tokens.
std::vector<FewRows> few_rows(const Shape& shape, int tokens);
std::string few_rows_name(const Shape& shape, const FewRows& rows);
Case few_rows_case(const Shared& cache, const FewRows& rows, int threads);

}  // namespace glimpse::bench
