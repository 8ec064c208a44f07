// The last few rows of a sequence against all keys: cases of the attention benchmark. Holds the cache by shared
// pointer; cases run on any threads.
#pragma once

#include <string>
#include <vector>

#include "glimpse/evaluate/kernel_cases.h"

namespace glimpse::bench {

struct FewRows {
  int rows = 0;
  bool verify = false;  ///< with the bits of decoding, as lossless decoding verifies; else as rows of a prompt
};

/// What is measured for a shape in a context of so many tokens.
std::vector<FewRows> few_rows(const evaluate::KernelShape& shape, int tokens);
std::string few_rows_name(const evaluate::KernelShape& shape, const FewRows& rows);
evaluate::KernelCase few_rows_case(const evaluate::SharedCache& cache, const FewRows& rows, int threads);

}  // namespace glimpse::bench
