// The custom nodes of the forward graph: normalisation with its residual addition, rope and append, the phases of
// attention. ggml calls each on every thread (ith of nth) with a barrier after each node. Nodes never throw.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "glimpse/attention/cpu/runner.h"
#include "glimpse/exec/rope.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/model/model.h"

struct ggml_tensor;

namespace glimpse::exec {

/// Sums over rows of 1 - cosine(x, x + attention(x)).
struct ChangeSum {
  double sum = 0;
  std::int64_t rows = 0;
};

/// What nodes share during a pass. Owned by the executor; filled before the graph runs.
struct PassData {
  const model::Model* model = nullptr;
  attention::Runner* runner = nullptr;
  RopeTable* rope = nullptr;
  std::span<const attention::SequenceRows> sequences;
  std::span<const std::int32_t> output_rows;
  int rows = 0;                             ///< that layers compute: of all sequences, until narrow() leaves some out
  std::function<void(int rows)> narrow;     ///< sets the rows of all nodes
  std::vector<std::vector<float>> scratch;  ///< [threads] kAppendRows rotated keys, and values
  std::vector<std::vector<std::byte>> products;  ///< [threads] few_rows_scratch of the largest weight
  std::vector<std::vector<ChangeSum>> changes;   ///< [threads, layers]; empty: nobody asks
  std::uint32_t run = 0;                         ///< another one whenever a graph runs
};

/// The user data of one node. Lives as long as its graph.
struct NodeData {
  PassData* pass = nullptr;
  int layer = 0;
  bool add = false;          ///< normalise: add the delta to the residual first
  bool attended = false;     ///< normalise: the delta is what the layer's attention gave
  std::uint64_t shares = 0;  ///< products of few rows: the run, and how many shares of it threads have taken
};

/// out = x / rms(x) * weight. `out` may be `x`.
void rms_norm(const float* x, const float* weight, std::int64_t width, float epsilon, float* out);
/// Counts how far adding what attention gave turns a row of the residual, where somebody asks.
void count_change(const NodeData& node, int thread, const float* x, const float* delta, std::int64_t width);

/// Rows that are left to compute where only the first `wanted` of `rows` are wanted any more: fewer by whole tiles,
/// and a tile behind the wanted ones stays. So whatever ggml does with the rows behind its last whole tile, it does it
/// to none of the wanted ones, and their bits are as before.
constexpr int narrowed(int rows, int wanted) {
  constexpr int kTile = 64;
  return rows - std::max(0, (rows - wanted) / kTile - 1) * kTile;
}

/// Rows of K that one thread rotates and appends at a time.
inline constexpr int kAppendRows = 64;

// src: residual [hidden, rows] (changed in place when data.add), weight [hidden], delta (when data.add).
// dst: normalised [hidden, rows].
void normalise_node(ggml_tensor* dst, int ith, int nth, void* data);
// src: fused qkv [(H + 2G) d, rows], or q, k, v. dst: q after bias, norm and rope [H d, rows]. Behind it the rows of
// sequences that were stopped are left out, where no other's come behind them.
void append_node(ggml_tensor* dst, int ith, int nth, void* data);
// src: q. dst: one unused float.
void select_node(ggml_tensor* dst, int ith, int nth, void* data);
// src: q (and the select node). dst: [H d, rows].
void attend_node(ggml_tensor* dst, int ith, int nth, void* data);
// src: [width, rows] (and what must come first). dst: its output rows [width, outputs].
void gather_node(ggml_tensor* dst, int ith, int nth, void* data);

/// A pass over a few rows (a decoded token, sequences that decode together, a verification) multiplies dot by dot, each
/// row of the weight read once: the bits of one row do not depend on the others, and it is faster than ggml's products
/// of tiles, which waste most of a tile on them. Measured with Q8_0 and AVX2: from six rows on the tiles win.
inline constexpr std::int64_t kFewRows = kernels::kFewRows;
/// True when few_rows_node multiplies so many rows by `weight`: not from a repacked layout.
bool multiplies_few_rows(const ggml_tensor* weight, std::int64_t rows);
/// Bytes that a thread needs for it.
std::size_t few_rows_scratch(const ggml_tensor* weight);
// src: [in, rows], weight [in, out]. dst: [out, rows].
void few_rows_node(ggml_tensor* dst, int ith, int nth, void* data);
// The same with normalise_node before it, in every thread, so that nobody waits between the two. src: residual [in,
// rows], weight [in, out], the norm's weight [in], then (when data.add) delta and, where somebody reads it, the sum
// [in, rows] that is written in place of the residual, which other threads still read.
void normalised_few_rows_node(ggml_tensor* dst, int ith, int nth, void* data);

}  // namespace glimpse::exec
