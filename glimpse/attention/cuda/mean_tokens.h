// Compensation tokens on a device (RazorAttention, section 3.3). The sums over what windows lost are the host's, as on
// the CPU, so that forks and sessions are the same on both; the device has copies. A pass takes whole pages of lost
// rows into them, and reads the few behind anew, so that sums come back once in as many steps as a page has rows.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "glimpse/attention/cuda/pass_tables.h"
#include "glimpse/kernels/cuda/mean_tokens.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream. One thread at a time.
class MeanTokens {
 public:
  MeanTokens(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// Before a pass.
  void begin() { followed_.clear(); }
  /// For each of the pass's sequences whose program compensates (ProgramFacts), which have their slots and have
  /// forgotten what they forget: sends sums that the device lacks. Throws UserError when it has no room left.
  void follow(const SequenceRows& rows);
  /// When all are followed, for so many rows and query heads.
  void make_space(int rows, int heads);
  /// Adds those of a layer for a group of rows; rows counted from the group's first.
  void add(const PassTables& tables, const RowGroup& group, int layer, std::vector<kernels::cuda::MeanToken>& to) const;
  bool any() const { return !followed_.empty(); }
  /// [R, H] for the log-sum-exps of the layer that runs; null where none are wanted.
  float* lse() const { return any() ? lse_.pointer().raw() : nullptr; }
  /// Grows when memory of before is no longer used.
  std::int64_t moves() const { return moves_; }
  /// When the stream has passed: takes what changed into the sequence's state.
  void end(const SequenceRows& rows);

 private:
  struct Known {
    std::uint64_t serial = 0;
    bool ended = true;                             ///< the last pass that changed the sums came to its end
    bool takes = false;                            ///< this pass changes them
    std::vector<std::int64_t> held;                ///< [layer, kv_head] positions before it are in the device's sums
    std::vector<kernels::cuda::MeanToken> tokens;  ///< [layer, kv_head] of this pass; end 0: none
    kernels::cuda::Array<double> sums;             ///< [layer, kv_head, 2, d]
  };

  void send(const SequenceRows& rows, Known& known) const;

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  std::map<kv::SequenceId, Known> known_;  ///< an id that is used again is seen by its serial
  std::vector<kv::SequenceId> followed_;   ///< of this pass
  kernels::cuda::Array<float> lse_;
  std::int64_t moves_ = 0;
};

}  // namespace glimpse::attention::cuda
