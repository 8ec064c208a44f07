// Attention alone, method by method: the layers of a decode step that are alike (all dense, all reusing, ...) as one
// row, with what selecting and attending took beside what their bytes need at the bandwidth streamed just before. Owns
// everything it needs for the length of a call.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/method_arms.h"
#include "bench/step_bed.h"

namespace glimpse::bench {

/// Median and least of one number over the samples; seconds or a ratio.
struct Spread {
  double median = 0, least = 0;
};
Spread spread_of(std::vector<double> samples);

/// What a layer must read (and write, of scores), bytes: each row of K and V once, entries of lists, scores, indices.
struct LayerBytes {
  double select = 0, attend = 0;
};

/// Layers of one arm whose heads do the same.
struct LayerRow {
  std::string method, budget;
  std::string kind;    ///< "dense", "search", "1 select and read all + 2 reuse", ...
  int layers = 0;      ///< so many of them in the step; all times are of one
  int heads = 0;       ///< KV heads
  bool index = false;  ///< selects by an index over keys
  LayerBytes bytes;
  Spread select_s, attend_s;
  Spread select_need_s, attend_need_s;  ///< what the bytes take at the streamed bandwidth
  // Medians sample by sample; `least` from the least times on both sides, for machines with neighbours.
  Spread select_ratio;             ///< select_s over what it needs; 0 where nothing is read
  Spread select_over_s;            ///< select_s less what it needs, a KV head
  Spread fraction;                 ///< what all needs over what all took
  Spread over_dense_s;             ///< attend_s less that of a dense layer in the same round
  double mass = 0, best_mass = 0;  ///< of the sets that the layers read, and of the best sets of that size
};

struct LayerCaseOptions {
  BedOptions bed;  ///< `steps` and `plans` are filled in
  int repeats = 25;
};

/// Checks every arm's answers, then measures all in turn. Arms that were refused are left out; arms[0] is `full`.
/// `note` hears what is being done. Throws InternalError when an answer is wrong.
std::vector<LayerRow> run_layer_cases(const LayerCaseOptions& options, const std::vector<Arm>& arms,
                                      const std::function<void(const std::string&)>& note);

}  // namespace glimpse::bench
