// A pass that is launched behind the one that runs, before the host knows the last token that each sequence takes: the
// one that the device draws. So the device goes from one pass to the next, and the host does its part beside it. A
// sequence whose answer turns out to end, or to go on otherwise, takes its rows back. One thread at a time. Inside
// engine only.
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
  /// Behind a pass of the same sequences in the same order, each with one row there that has leaders: entries whose
  /// last token is the one that its row decides, and whose others are known. Each decodes, drafts or verifies, has
  /// leaders, and leaves nothing on the host that the next pass needs (exec::Executor::leaves_nothing). A
  /// verification takes the drafts out of the cache first. False where the cache or memory has no room, with nothing
  /// else changed.
  bool launch(Device& device, std::span<const PassEntry> entries);
  /// Waits for it, so that other passes may run. What went wrong comes with its result, and its rows are gone then.
  void land(Device& device) noexcept;
  bool any() const { return !entries_.empty(); }
  bool has_landed() const { return !flies_; }
  /// As launched; of those that have left it the sequence is null.
  std::span<const PassEntry> entries() const { return entries_; }
  bool has(const ActiveSequence& sequence) const;
  /// Of a pass that has landed: the sequence's rows count no more. True where they were counted as a step.
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
  std::vector<Draw> draws_;
  // What has landed.
  std::vector<exec::Leader> leaders_;              ///< [rows with logits, as many as were asked for], or else
  std::vector<float> logits_;                      ///< [rows with logits, vocabulary]
  std::vector<attention::ReadCounters> counters_;  ///< [entries]
  std::vector<std::exception_ptr> failures_;       ///< [entries] or none
  std::exception_ptr failure_;
};

}  // namespace glimpse::engine
