// What passes ask of a program that no length changes: which of its heads search what, which read what, how its sets
// are numbered. Worked out once for a program, so that a step does not walk its layers and heads for each sequence.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cuda/set_source.h"
#include "glimpse/kernels/ops.h"

namespace glimpse::attention::cuda {

/// Heads of all layers that read alike.
struct SameReads {
  int heads = 0;
  int compensated = 0;  ///< of these, with a mean token for what their window lost
};

/// Borrows the program, which it is used with. Immutable; any thread.
struct ProgramFacts {
  explicit ProgramFacts(const Program& program);

  /// Of a layer.
  struct Layer {
    std::vector<SetSource> sources;    ///< [selects]
    std::vector<kernels::Read> reads;  ///< [kv_heads] where no window is read; sets are counted from the entry's first
    bool windows = false;              ///< some head reads one
    std::vector<int> bounded;          ///< heads that search bounds of pages
    int scored = 0;                    ///< query heads whose scores sets are made from, before the layer attends
  };
  std::vector<Layer> layers;
  std::vector<int> sets;  ///< [layers, kv_heads] the first that the head publishes, counted from the first; -1: none
  int set_count = 0;

  bool trees = false, units = false, bounds = false;               ///< some set is made so
  bool joins = false;                                              ///< some layer joins what another one took
  bool compensates = false, has_tier = false, makes_keys = false;  ///< some head is so
  std::int64_t united_block = 0;                                   ///< the least of a united set; 0: there is none

  /// One select of each kind as far as sizes go, and all whose sizes follow from an index.
  std::vector<const SelectOp*> sized;

  SameReads everything;
  struct Windows : SameReads {
    const plan::Selector* window = nullptr;
  };
  std::vector<Windows> windows;
  struct Sets : SameReads {
    int first = 0, lists = 1;  ///< counted from the entry's first
  };
  std::vector<Sets> read_sets;
  struct Bounds {
    const plan::Selector* selector = nullptr;
    int searches = 0;
  };
  std::vector<Bounds> bound_searches;
};

/// Those of programs that passes run. Owned by a runner. One thread at a time.
class ProgramsFacts {
 public:
  /// Of a pass's sequences, in order; valid until the next pass's.
  std::span<const ProgramFacts* const> of(std::span<const SequenceRows> batch);

 private:
  std::map<std::uint64_t, std::unique_ptr<const ProgramFacts>> known_;  ///< by Program::number
  std::vector<const ProgramFacts*> of_batch_;
};

}  // namespace glimpse::attention::cuda
