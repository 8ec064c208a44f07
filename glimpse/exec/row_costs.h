// What several rows of one sequence in a pass cost. A plain value; any thread.
#pragma once

namespace glimpse::exec {

/// What a pass over several rows of one sequence costs, as a multiple of one decoding row: by instruction set and
/// never by a clock, so that who plans by them plans the same each time. A back end gives its own; these are those of
/// AVX-512: what a verification of five rows takes in the engine at 30,000 tokens (`lossless_bench`: 1.94 dense steps),
/// which is more than the kernel alone does (`attention_bench dense verify`, docs/benchmarks.md).
/// Attention of several rows takes (attention_once + attention_query * lanes) / (1 + dense_query * g) of a dense read's
/// time, lanes being their query vectors in whole vectors.
struct RowCosts {
  double weights_row = 0.2;  ///< of the weights' time, each further row
  double attention_once = 1.4;
  double attention_query = 0.08;
  double dense_query = 0.115;
  int vector = 16;  ///< floats
  /// A verification of so many rows says, bit for bit, what dense decoding says; 1: none does.
  int same_bits = 1;
};

}  // namespace glimpse::exec
