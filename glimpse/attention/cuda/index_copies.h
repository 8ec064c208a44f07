// A device's copies of what the host's indices hold, by sequence: they are sent whole where the device has others, or
// none, and then by what each step changes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "glimpse/attention/cuda/index_builder.h"

namespace glimpse::attention::cuda {

/// Copy: what a head has on the device, in its sequence's memory. Borrows cache and stream. One thread at a time.
template <class Copy>
class IndexCopies {
 public:
  /// Of one sequence.
  struct Known {
    std::uint64_t serial = 0;  ///< of the sequence that these are; an id that is used again is seen by it
    double build_s = 0;        ///< in this pass
    kernels::cuda::Memory memory;
    std::vector<Copy> copies;                  ///< [layer, kv_head]
    std::vector<kernels::cuda::Write> writes;  ///< to send
  };

  IndexCopies(const kv::Cache& cache, kernels::cuda::Stream& stream) : cache_(cache), stream_(stream) {}

  /// Before a pass: what it did not write because it failed is sent anew.
  void begin() {
    if (!sent_) {
      for (auto& [id, known] : known_) known.serial = 0;
    }
    sent_ = true;
    followed_.clear();
    writes_.clear();
  }
  Known& of(const SequenceRows& rows) { return known_[rows.sequence]; }
  const std::vector<Copy>& copies(const SequenceRows& rows) const { return known_.at(rows.sequence).copies; }
  const Copy& copy(const SequenceRows& rows, int layer, int head) const {
    return copies(rows)[rows.state->head(layer, head)];
  }
  /// True where the device's copies are another sequence's.
  bool is_other(const SequenceRows& rows) const {
    const auto known = known_.find(rows.sequence);
    return known == known_.end() || known->second.serial != cache_.serial(rows.sequence);
  }
  /// All is sent again.
  void forget(const SequenceRows& rows) {
    Known& known = of(rows);
    known.serial = 0;
    known.writes.clear();
  }
  /// New copies of so many bytes; `what` they are called. They count from hold() on. Throws UserError when the device
  /// has no room left.
  Known& renew(const SequenceRows& rows, std::size_t bytes, const char* what) {
    forget(rows);
    Known& known = of(rows);
    known.copies.assign(rows.state->indices.size(), {});
    if (bytes <= known.memory.size()) return known;
    known.memory = {};
    const auto make_room = [&] {  // those of others come again when they are searched
      for (auto& [id, other] : known_) {
        const bool needed = std::find(followed_.begin(), followed_.end(), id) != followed_.end();
        if (!needed && &other != &known) other = {};
      }
    };
    known.memory = copies_memory(stream_, bytes + bytes / 8, rows, what, make_room);
    return known;
  }
  void hold(const SequenceRows& rows) { of(rows).serial = cache_.serial(rows.sequence); }
  /// The pass reads these copies, and sends what was written for them.
  void follow(const SequenceRows& rows) {
    const Known& known = of(rows);
    followed_.push_back(rows.sequence);
    writes_.insert(writes_.end(), known.writes.begin(), known.writes.end());
    sent_ = sent_ && known.writes.empty();
  }
  /// What the pass sends; followed by written() when that is queued.
  const std::vector<kernels::cuda::Write>& writes() const { return writes_; }
  void written() {
    for (const kv::SequenceId sequence : followed_) known_[sequence].writes.clear();
    sent_ = true;
  }
  /// Known::build_s, once.
  double take_seconds(const SequenceRows& rows) {
    const auto known = known_.find(rows.sequence);
    return known == known_.end() ? 0 : std::exchange(known->second.build_s, 0);
  }

 private:
  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  std::map<kv::SequenceId, Known> known_;
  std::vector<kv::SequenceId> followed_;  ///< of this pass
  std::vector<kernels::cuda::Write> writes_;
  bool sent_ = true;
};

}  // namespace glimpse::attention::cuda
