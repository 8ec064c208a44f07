// Sequences to and from saved sessions. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/loaded_model.h"
#include "glimpse/engine/programs.h"
#include "glimpse/engine/session/content.h"

namespace glimpse::engine {

/// What sessions of a model in such a cache belong to.
SessionModel session_model(const LoadedModel& loaded, const kv::Cache& cache);

/// Where a session's sequence comes to live: an engine's model, cache and programs.
struct SessionHome {
  const LoadedModel& loaded;
  kv::Cache& cache;
  Programs& programs;
};

/// What of a saved session becomes a sequence: its first `tokens` under a plan, with all that attention keeps or
/// without.
struct Adopted {
  const plan::Plan* plan = nullptr;
  std::int64_t tokens = 0;
  bool state = false;  ///< of all tokens alone
};
/// Throws UserError for a section that fails its check and a full cache, and there is no sequence then.
ActiveSequence adopt(const SessionReader& reader, const SavedSession& session, const Adopted& wanted,
                     const SessionHome& home);

/// What of a sequence is saved.
struct SequenceParts {
  const ActiveSequence* sequence = nullptr;
  const attention::SequenceState* state = nullptr;  ///< of its plan
  std::span<const float> logits;                    ///< [vocabulary] of the last token, or none
  std::span<const std::byte> made = {};             ///< SessionSource::made
};
/// The file begun; its pages are still to be written. Throws UserError; what was there before is left as it is.
std::unique_ptr<SessionPieces> begin_parts(const SequenceParts& parts, const std::filesystem::path& file,
                                           const SessionModel& model, const kv::Cache& cache);
/// Writes the sequence, and logits [vocabulary] of its last token where they are given. Returns the bytes written.
/// Throws UserError; what was there before is left as it is.
std::int64_t save_sequence(const ActiveSequence& sequence, std::span<const float> logits,
                           const std::filesystem::path& file, const LoadedModel& loaded, const kv::Cache& cache);

}  // namespace glimpse::engine
