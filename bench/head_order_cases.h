// LycheeDecode's question about its kernel: heads of one layer that read everything beside heads that read a set. Are
// they better ordered by kind or as the model has them, and better cut into equal splits in one pool or given out
// whole? Owns everything it needs for the length of a call.
#pragma once

#include <string>
#include <vector>

#include "bench/layer_cases.h"
#include "glimpse/evaluate/kernel_cases.h"

namespace glimpse::bench {

struct HeadOrderRow {
  std::string cache;  ///< "bf16 h8 g4 d128"
  int retrieval = 0;  ///< heads of `heads` that read everything; the others read evaluate::kGatheredRows tokens
  int heads = 0;
  bool by_kind = false;  ///< retrieval heads first; else spread evenly
  bool pooled = false;   ///< equal splits of all heads in one pool; else a head an item
  double bytes = 0;      ///< of one layer
  Spread layer_s;        ///< attending of one layer, without combining
  Spread fraction;       ///< what the bytes take at the streamed bandwidth over that
  Spread over_unsorted;  ///< layer_s over that of pooled splits in the model's order, in the same round; a ratio
};

/// Four arms in turn for each of `retrieval`; the first of the rows of each is pooled in the model's order. Throws
/// InternalError when an answer is wrong.
std::vector<HeadOrderRow> run_head_order_cases(const evaluate::KernelShape& shape, int tokens,
                                               const std::vector<int>& retrieval, int threads, int repeats);

}  // namespace glimpse::bench
