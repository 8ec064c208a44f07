// ShadowKV's keys of a prompt on a device: factors that are made when the prompt has ended, and are the host's
// (kv::LowRankKeys), copied once for all sequences that share them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/index_builder.h"
#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kernels/cuda/made_rows.h"
#include "glimpse/kernels/rotation.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache, stream, builder, and the model's rotation (null: no plan has such keys). One
/// thread at a time.
class LowRank {
 public:
  LowRank(const kv::Cache& cache, kernels::cuda::Stream& stream, IndexBuilder& builder, kernels::Rotation* rotation)
      : cache_(cache), stream_(stream), builder_(builder), rotation_(rotation) {}

  /// Before a pass.
  void begin();
  /// For each of its sequences in order, before tables are made: factors of those that read them are there. Throws
  /// UserError when the device has no room left.
  void follow(const SequenceRows& rows);
  /// When the stream has passed: factors of a prompt that ended, or was corrected. Returns the seconds that they took.
  double end(const SequenceRows& rows);

  /// How often the memory of angles has moved.
  int moves() const { return moves_; }
  /// Fills in whose factors a set is made from.
  void point(const SequenceRows& rows, int layer, kernels::cuda::MadeSet& set) const;
  kernels::Pointer<const float, kernels::Place::device> angles() const { return angles_.constant(); }
  kernels::RotationPairs pairs() const { return rotation_ == nullptr ? kernels::RotationPairs{} : rotation_->pairs(); }

 private:
  /// Of one layer.
  struct Copy {
    std::shared_ptr<const kv::LowRankKeys> keys;  ///< keeps the key of the map
    kernels::cuda::Memory factors, basis;
  };
  struct Room;
  double make(const SequenceRows& rows, std::int64_t tokens);
  void send(const SequenceRows& rows);
  void turn_to(std::int64_t positions);
  void make_room();
  void require_room(const SequenceRows& rows, std::size_t bytes);

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  IndexBuilder& builder_;
  kernels::Rotation* rotation_;
  std::map<const kv::LowRankKeys*, Copy> copies_;
  std::set<const kv::LowRankKeys*> needed_;  ///< in this pass
  kernels::cuda::Array<float> angles_;
  std::int64_t turned_ = 0;                   ///< positions
  std::map<kv::SequenceId, double> build_s_;  ///< in this pass
  int moves_ = 0;
};

}  // namespace glimpse::attention::cuda
