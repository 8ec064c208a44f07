// One forward pass over rows of several sequences, and what it leaves in them. One thread at a time, which on_sets is
// called on. Inside engine only.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/ahead_pass.h"
#include "glimpse/engine/device.h"
#include "glimpse/engine/finite_logits.h"
#include "glimpse/engine/loaded_model.h"
#include "glimpse/engine/pass_entry.h"

namespace glimpse::engine {

/// Rows of one pass of a prompt under this plan: tiles of a sparse prefill are not cut.
std::size_t chunk_rows(const plan::Plan& plan, int prefill_chunk);

/// Runs passes on a device, and keeps the buffers that they share. Model and device outlive it.
class PassRunner {
 public:
  PassRunner(LoadedModel& loaded, Device& device) : loaded_(&loaded), device_(&device) {}
  PassRunner(const PassRunner&) = delete;
  PassRunner& operator=(const PassRunner&) = delete;

  /// Returns the logits of the wanted rows in order, valid until the next pass, and in failures() what ended single
  /// entries: those are taken back or broken. Throws what ended the pass for all, with every entry taken back or
  /// broken.
  /// Where the device queues passes, `meanwhile` is called while the pass runs.
  std::span<const float> run(std::span<const PassEntry> entries, const std::function<void()>& meanwhile = {});
  /// Runs one entry; throws what ended it.
  std::span<const float> run_alone(const PassEntry& entry);
  /// From `meanwhile`: queues the next pass, of entries as AheadPass::launch() wants them. False: there is no room.
  bool launch_ahead(std::span<const PassEntry> entries) { return ahead_.launch(*device_, entries); }
  /// The entries of such a pass; of those whose row was taken back the sequence is null. None: there is no such pass.
  std::span<const PassEntry> ahead() const { return ahead_.entries(); }
  /// When the tokens that its rows take are known: notes them, in place of those of drafts that it verifies; of others
  /// than the device has drawn the rows are taken back.
  void note_ahead();
  /// As run(), of the pass that was queued, for the entries that are left.
  std::span<const float> run_ahead(const std::function<void()>& meanwhile);
  /// Before anything else is done with a sequence: its rows in such a pass are gone as if they had never been, and
  /// drafts that it was to verify are to leave, too.
  void take_back(ActiveSequence& sequence) noexcept;
  /// run_alone() in slices of layers: open(), advance() until no layer is left (true), close(). An entry that was
  /// stopped may be closed before that. Its sequence is nobody else's until then; another PassRunner may run passes.
  void open(const PassEntry& entry);
  bool advance(int layers);
  /// As run(): what ended the entry is in failures().
  std::span<const float> close();
  /// Logits [count, vocabulary] of rows of an entry of the last pass that kept them, at most exec::kLogitRows, valid
  /// until the next call. Throws UserError when memory is short.
  std::span<const float> logits_of(std::size_t entry, std::size_t first, std::size_t count);
  /// [wanted rows, n] the largest logits in place of all, where every entry said that so many or fewer are enough and
  /// the device makes them: run() returns nothing then. Valid as its logits.
  std::span<const exec::Leader> leaders() const { return leaders_; }
  /// [entries] of the last pass; null: it went well.
  std::span<const std::exception_ptr> failures() const { return failures_; }
  /// Inside a pass, where on_sets is called.
  bool is_running() const { return running_; }

 private:
  /// Makes the batch of the entries, and notes the tokens that they append.
  void gather();
  void gather_rows();
  /// on_sets of the entries that decode.
  void record_sets();
  exec::StepBatch batch() const;
  /// What the executor throws ends the pass: entries are taken back or broken.
  template <class Work>
  auto guarded(const Work& work);
  /// What a pass that went through leaves.
  std::span<const float> take_result(const exec::StepResult& result);
  /// Fails entries whose logits hold NaN or infinity; `logits` are the pass's, in order, none where leaders_ are. The
  /// pass is in the cache then and not yet in the sequences, so nothing may leave from here: what memory is short for
  /// is left unsaid.
  void refuse_not_finite(std::span<const float> logits) noexcept;
  void refuse(std::size_t entry, std::int64_t row, const NotFinite* found) noexcept;
  /// What the pass leaves in the sequence of an entry that went well.
  void take_in(const PassEntry& entry, const attention::ReadCounters& counters) const;
  /// After a pass that failed for this entry: takes its tokens out of the cache again where all that the sequence
  /// keeps is provably as before, else marks the sequence broken.
  void recover(const PassEntry& entry, const std::exception_ptr& why) const noexcept;

  LoadedModel* loaded_;
  Device* device_;
  std::span<const PassEntry> entries_;  ///< of the pass that runs
  PassEntry open_;                      ///< of the one in slices
  std::vector<Token> tokens_;
  std::vector<attention::SequenceRows> rows_;
  std::vector<std::int32_t> output_rows_, wanted_rows_;
  std::vector<std::exception_ptr> failures_;
  std::vector<exec::Leader> leaders_;
  std::vector<Draw> draws_;
  std::vector<std::int32_t> drawn_;       ///< [entries] by the device, for a pass behind
  AheadPass ahead_, taken_;               ///< the next pass, and the one whose results are taken
  std::vector<PassEntry> ahead_entries_;  ///< that are left of it
  bool recording_ = false;                ///< the executor reports what heads read
  bool running_ = false;
};

}  // namespace glimpse::engine
