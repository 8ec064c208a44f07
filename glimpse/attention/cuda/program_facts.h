// What passes ask of a program that no length changes: which of its heads search what, and which read alike. Worked out
// once for a program, so that a step does not walk its layers and heads for each sequence.
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

/// Borrows the program, which it is used with. Immutable; any thread.
struct ProgramFacts {
  explicit ProgramFacts(const Program& program);

  /// Of a layer.
  struct Layer {
    std::vector<SetSource> sources;    ///< [selects]
    std::vector<int> bounded;          ///< heads that search bounds of pages
    int scored = 0;                    ///< KV heads whose scores sets are made from, before the layer attends
    std::vector<kernels::Read> reads;  ///< [heads] HeadOp::read
    bool windows = false;              ///< some head reads a window: HeadOp::read_at says which at a length
  };
  std::vector<Layer> layers;

  bool trees = false, units = false, bounds = false;               ///< some set is made so
  std::vector<const plan::Selector*> trees_of_chunks;              ///< of those whose trees hold chunks, each once
  bool joins = false;                                              ///< some layer joins what another one took
  bool compensates = false, has_tier = false, makes_keys = false;  ///< some head is so
  std::int64_t united_block = 0;                                   ///< the least of a united set; 0: there is none

  /// One select of each kind as far as sizes go, and all whose sizes follow from an index.
  std::vector<const SelectOp*> sized;

  /// Heads of all layers that read alike at any length.
  struct SameReads {
    const HeadOp* head = nullptr;  ///< one of them
    int heads = 0;
  };
  std::vector<SameReads> reads;
  struct Bounds {
    const plan::Selector* selector = nullptr;
    int searches = 0;
  };
  std::vector<Bounds> bound_searches;

  /// A pass of rows of this kind, which decode or verify, leaves nothing on the host that the next one needs, at
  /// `tokens` and beyond. What drafts feed waits until they are verified. Trees take in what both passes do not touch.
  bool leaves_nothing(const Program& program, PassKind kind, std::int64_t tokens) const;
};

/// Those of programs that passes run. Owned by a runner. One thread at a time.
class ProgramsFacts {
 public:
  /// Of a pass's sequences, in order; the span is valid until the next pass's, the facts until trim().
  std::span<const ProgramFacts* const> of(std::span<const SequenceRows> batch);
  const ProgramFacts& of(const Program& program);
  /// Forgets them where there are many, while no pass has any.
  void trim();

 private:
  std::map<std::uint64_t, std::unique_ptr<const ProgramFacts>> known_;  ///< by Program::number
  std::vector<const ProgramFacts*> of_batch_;
};

}  // namespace glimpse::attention::cuda
