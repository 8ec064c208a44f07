// Sparse prefill on a device (Kascade, section 3.4; StreamingLLM's windows): a prompt's rows in tiles, each of which
// reads a window or a set of what lies before it. All that tiles read is known before the pass but the sets themselves,
// which are made and read on the device. Sets lie where a layer's are no longer read.
//
// A layer whose tiles choose by the probabilities of their rows attends densely once for the log-sum-exps, if not for
// its output; then what rows gave to each slot is summed tile by tile, and the best slots are taken.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/attention/cuda/tile_rows.h"
#include "glimpse/kernels/cuda/staging.h"
#include "glimpse/kernels/cuda/tiles.h"

namespace glimpse::attention::cuda {

/// What an operation of a prompt's tiles is told.
struct TileCall {
  kernels::KvTable<kernels::Place::device> cache;
  kernels::Pointer<const float, kernels::Place::device> q;
  int group = 1;
  float scale = 1;
  float* lse = nullptr;  ///< [R, H] of everything that rows see, overwritten
  kernels::Pointer<float, kernels::Place::device> out;
};

/// Owned by a runner; borrows cache and stream. One thread at a time.
class Tiles {
 public:
  Tiles(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// For a pass whose tables are made: adds to the staging what its tiles read and choose.
  void begin(const PassTables& tables, int heads, kernels::cuda::Staging& staging);
  bool any() const { return !prompts_.empty(); }
  /// [R, H]; null where no prompt of the pass has tiles.
  float* lse() const { return any() ? lse_.pointer().raw() : nullptr; }
  /// Queues a layer of a prompt; false where it has no tiles.
  bool run(int layer, const kernels::PromptRows& prompt, const TileCall& call,
           kernels::Operations<kernels::Place::device>& operations);

 private:
  /// Tiles that choose by one selector, for heads of one layer.
  struct Choosing {
    bool by_mean_query = false, softmax = false;
    int parts = 1;  ///< that sums of a tile have
    int tiles = 0;
    int heads = 0;                                                                          ///< KV heads that score
    int each = 0;                                                                           ///< choices of a tile
    std::size_t pieces = 0, sequence = 0, before = 0, within = 0, scores = 0, choices = 0;  ///< in the staging
  };
  struct Layer {
    bool sparse = false;  ///< some tile reads a part
    std::size_t reads = 0;
    std::vector<Choosing> choosing;
  };
  struct Prompt {
    SequenceRows rows;
    kernels::PromptRows all;
    int tile = 0, tiles = 0;
    int first_set = 0;
    std::size_t pieces = 0;
    std::vector<int> places;  ///< [layers, kv_heads] of the sets that a slot holds: [tiles] from first_set + place on
    std::vector<Layer> layers;
  };

  void place_sets(Prompt& prompt);
  void add_layer(Prompt& prompt, int layer);
  void add_choosing(Prompt& prompt, int layer, const plan::Selector& selector);
  kernels::cuda::TileRead read_of(const Prompt& prompt, int layer, int head, int tile) const;
  kernels::PromptRows piece(const Prompt& prompt, int tile) const;
  void make_space(int rows, int heads);
  bool has_row_sums(int layer, kv::SequenceId sequence) const;
  void choose(const Choosing& choosing, const TileCall& call, kernels::Operations<kernels::Place::device>& operations);

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  kernels::cuda::Staging* staging_ = nullptr;
  std::vector<Prompt> prompts_;  ///< of the pass
  int sets_ = 0;
  int batch_ = 1;  ///< tiles that choose at a time
  std::int32_t capacity_ = 0;
  std::size_t stride_ = 0, most_tiles_ = 0;
  kernels::cuda::Array<float> lse_, sums_, tile_lse_, means_;
  kernels::cuda::Array<std::int32_t> slots_, counts_;
};

}  // namespace glimpse::attention::cuda
