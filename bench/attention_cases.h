// The cases of attention_bench: what each attention kernel takes beside the memory's read bandwidth. Answers are
// checked before anything is timed. Owns its threads and memory for the length of the call.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "glimpse/evaluate/kernel_cases.h"

namespace glimpse::bench {

struct AttentionBenchOptions {
  int threads = 1;
  int repeats = 9;                ///< timings of each case
  int tokens = 32768;             ///< context of the decode cases
  std::vector<std::string> only;  ///< cases whose name contains one of these; empty: all
};

/// Empty where no case has such a name. The first row is the streaming read. Throws InternalError when an answer is not
/// the reference's.
std::vector<evaluate::KernelRow> run_attention_cases(const AttentionBenchOptions& options);

/// As Markdown.
std::string attention_table(std::span<const evaluate::KernelRow> rows);

}  // namespace glimpse::bench
