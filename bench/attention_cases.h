// The attention kernels' benchmark: every case is checked against the reference, then all are timed in turns, each
// beside a streaming read of the same threads, so that both see the same neighbours. Owns its threads and memory for
// the length of the call.
#pragma once

#include <string>
#include <vector>

namespace glimpse::bench {

struct AttentionBenchOptions {
  int threads = 0;                ///< 0: all processors
  int repeats = 9;                ///< timings of each case
  int tokens = 32768;             ///< context of the decode cases
  std::vector<std::string> only;  ///< cases whose name contains one of these; empty: all
};

struct AttentionBenchRow {
  std::string name;
  double median_s = 0, min_s = 0, max_s = 0;  ///< one layer
  double bytes = 0;                           ///< that one layer needs: rows of K and V once, indices, scores
  double fraction = 0;                        ///< bytes / time over the bandwidth streamed beside it; median
  double gflops = 0;                          ///< multiply-adds counted twice; median
};

/// Throws InternalError when an answer is not the reference's. The first row is the streaming read.
std::vector<AttentionBenchRow> run_attention_cases(const AttentionBenchOptions& options);

/// As Markdown.
std::string attention_table(const std::vector<AttentionBenchRow>& rows);

}  // namespace glimpse::bench
