// What several rows of one sequence in a pass cost. A plain value; any thread.
#pragma once

namespace glimpse::exec {

/// What a pass over several rows of one sequence costs, in parts of what one decoding row does: by instruction set and
/// never by a clock, so that who plans by them plans the same each time. A back end gives its own; those of attention
/// here were measured with AVX-512 (`attention_bench verify`, docs/benchmarks.md).
struct RowCosts {
  double weights_row = 0.2;        ///< of the weights' time, each further row
  double attention_once = 0.9;     ///< of the dense read's time, all rows together,
  double attention_query = 0.072;  ///< and each row of each query head of a group, in whole vectors
  int vector = 16;                 ///< floats
};

}  // namespace glimpse::exec
