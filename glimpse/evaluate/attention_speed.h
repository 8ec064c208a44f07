// The attention kernels alone, as a decode step calls them: every head's work split over threads, on random rows in
// cache pages. Each answer is checked against the reference kernels, and each time stands beside the read bandwidth
// that the same call measures. One thread calls; it starts and joins its own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "glimpse/evaluate/kernel_cases.h"

namespace glimpse::evaluate {

struct AttentionOptions {
  std::vector<std::int64_t> depths;  ///< tokens in the cache
  int kv_heads = 3, group = 3, head_dim = 64;
  KvType kv_type = KvType::bf16;
  std::int64_t rows = kGatheredRows;  ///< of a head that the gathered pass reads
  int threads = 0;                    ///< 0: one for each physical core that the process may use
  int repetitions = 5;
  /// Called before each measurement with what is done and to do; false ends the run.
  std::function<bool(std::int64_t done, std::int64_t total)> on_measurement;
};

struct AttentionRow {
  std::string kernel;  ///< "dense" or "gathered"
  std::int64_t depth = 0;
  double median_s = 0, least_s = 0, most_s = 0;
  double bytes = 0;  ///< that the set needs: each row of K and V once, and the entries of a list
  double bytes_per_s = 0;
  double fraction = 0;  ///< bytes / time over the bandwidth streamed beside it; median
  double error = 0;     ///< largest difference from the reference, as a share of the largest output
};

struct AttentionSpeed {
  double read_bandwidth = 0;  ///< bytes per second, all threads streaming; the median of runs between the kernels'
  std::vector<AttentionRow> rows;
};

/// The same on a GPU, by the operations of kernels/cuda: launches back to back over different memory, in one graph.
/// Throws UserError where there is no such device, and for a type of cache or head dimension without kernels there.
AttentionSpeed measure_attention_on_gpu(const AttentionOptions& options, int device);

/// Throws UserError for a head dimension that kernels do not take; InternalError when a kernel's answer is wrong.
AttentionSpeed measure_attention(const AttentionOptions& options);

}  // namespace glimpse::evaluate
