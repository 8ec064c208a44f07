// A pass that is launched behind the one that runs, before the host knows the tokens that it takes: those with the
// largest logits. So the device goes from one pass to the next, and the host does its part beside it. A sequence whose
// answer turns out to end takes its row back. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "glimpse/engine/device.h"
#include "glimpse/engine/pass_entry.h"

namespace glimpse::engine {

class AheadPass {
 public:
  /// Behind a pass of these entries, each of which decodes a row, has one leader, and a program that leaves nothing on
  /// the host (exec::Executor::leaves_nothing). False where the cache or memory has no room, with nothing changed.
  bool launch(Device& device, std::span<const PassEntry> entries);
  /// Waits for it, so that other passes may run. What went wrong comes with its result, and its rows are gone then.
  void land(Device& device) noexcept;
  bool any() const { return !entries_.empty(); }
  bool has_landed() const { return !flies_; }
  /// As launched; of those that have left it the sequence is null.
  std::span<const PassEntry> entries() const { return entries_; }
  bool has(const ActiveSequence& sequence) const;
  /// Of a pass that has landed: the sequence's row counts no more. True where the device has counted it.
  bool leave(const ActiveSequence& sequence);
  /// Once, of a pass that has landed: without the rows of those that have left it. Throws what ended it.
  exec::StepResult result();
  void clear();

 private:
  std::vector<PassEntry> entries_;
  bool flies_ = false;
  // What the pass needs until it is launched.
  std::vector<attention::SequenceRows> rows_;
  std::vector<std::int32_t> tokens_, outputs_;
  // What has landed: [entries]
  std::vector<exec::Leader> leaders_;
  std::vector<attention::ReadCounters> counters_;
  std::vector<std::exception_ptr> failures_;
  std::exception_ptr failure_;
};

}  // namespace glimpse::engine
