// Indices over units on a device: landmarks (ShadowKV), gates (SeerAttention-R), bounds of chunks (LycheeCluster
// without its tree), and digests of pages that do not hang on the pages (Summaries): spheres, means and variances,
// blocks of any size. The host's indices stay the truth (IndexBuilder); their rows are copied, and what a step adds is
// sent. Gates' weights lie on the device once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/flat_units.h"
#include "glimpse/attention/cuda/index_copies.h"
#include "glimpse/kernels/cuda/made_rows.h"
#include "glimpse/kernels/cuda/trees.h"
#include "glimpse/kernels/cuda/units.h"

namespace glimpse::attention::cuda {

/// The index of a head that a search of units reads (searches_units); null where it has none.
kv::KeyIndex* units_of(const SequenceRows& rows, int layer, int head);

/// A head's copy on the device, in its sequence's memory.
struct UnitCopy {
  float* rows = nullptr;         ///< [room, values]
  float* radii = nullptr;        ///< [room]
  std::int32_t* ends = nullptr;  ///< [room] of chunks; null: units are blocks
  std::int32_t* marked = nullptr;
  std::int32_t marked_count = 0, count = 0, room = 0;
  int width = 0;
  kernels::cuda::UnitKind kind = kernels::cuda::UnitKind::mean;
};

/// A search is to read these units, by the scores of their kind.
void point_to(const UnitCopy& copy, kernels::cuda::UnitSearch& search);
/// The same of chunks that are chosen by what they scored.
void point_to(const UnitCopy& copy, kernels::cuda::TreeSearch& search);
/// A set is to make no keys of those that are marked.
void point_to(const UnitCopy& copy, kernels::cuda::MadeSet& set);

/// Owned by a runner; borrows cache, stream and builder. One thread at a time.
class Units {
 public:
  Units(const kv::Cache& cache, kernels::cuda::Stream& stream, IndexBuilder& builder)
      : cache_(cache), stream_(stream), builder_(builder), copies_(cache, stream) {}

  /// Before a pass.
  void begin();
  /// For each of the pass's sequences, which have their slots: host and device take in what a search of these rows
  /// reads. Throws UserError when the device has no room left.
  void follow(const SequenceRows& rows);
  /// What the pass sends to the device's copies; followed by written() when that is queued.
  const std::vector<kernels::cuda::Write>& writes() const { return copies_.writes(); }
  void written() { copies_.written(); }
  /// When the stream has passed: the indices of a prompt that ended are built, corrected keys are taken in. Returns the
  /// seconds, of all threads together, that building indices of the sequence took in this pass.
  double end(const SequenceRows& rows);

  /// Where the units of a head lie, after follow().
  const UnitCopy& copy(const SequenceRows& rows, int layer, int head) const { return copies_.copy(rows, layer, head); }
  /// What a gate makes its query of; `turn` and `own_turn` count from the first of GateTurns::angles.
  kernels::cuda::GateQuery gate_query(const SequenceRows& rows, int layer, int head) const;
  /// How the pass's queries are turned back that go through gates.
  struct GateTurns {
    std::vector<float> angles;     ///< cosines and sines of their rows; empty: no gates
    kernels::RotationPairs pairs;  ///< of the model
  };
  const GateTurns& turns() const { return turns_; }
  /// Units of a search of the pass, at most; a bound that seldom changes, 0 where nobody searches any.
  int most() const { return most_; }
  /// The same of those that are chunks.
  int most_chunks() const { return most_chunks_; }

 private:
  struct GateMemory {
    std::shared_ptr<kv::Gates> gates;  ///< keeps the key of the map
    kernels::cuda::Array<float> weights, norms;
  };
  /// Where the angles of a sequence's row lie.
  struct Turned {
    std::uint32_t turn = 0, own_turn = 0;
  };

  double extend(const SequenceRows& rows, std::span<IndexItem> items, std::int64_t prompt);
  void send_all(const SequenceRows& rows, std::span<const IndexItem> items);
  void turn_gates(const SequenceRows& rows);
  double build(const SequenceRows& rows);
  double mend(const SequenceRows& rows);

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  IndexBuilder& builder_;
  IndexCopies<UnitCopy> copies_;
  std::map<const kv::Gates*, GateMemory> gates_;
  std::map<std::pair<kv::SequenceId, const kv::Gates*>, Turned> turned_;  ///< of this pass
  GateTurns turns_;
  int most_ = 0, most_chunks_ = 0;
};

}  // namespace glimpse::attention::cuda
