// Sequences to and from saved sessions. One thread at a time. Inside engine only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "glimpse/engine/active_sequence.h"
#include "glimpse/engine/runtime.h"
#include "glimpse/engine/session/content.h"

namespace glimpse::engine {

/// The model and cache that sessions of this runtime belong to.
SessionModel session_model(const Runtime& runtime);

/// What of a saved session becomes a sequence: its first `tokens` under a plan, with all that attention keeps or
/// without.
struct Adopted {
  const plan::Plan* plan = nullptr;
  std::int64_t tokens = 0;
  bool state = false;  ///< of all tokens alone
};
/// Throws UserError for a section that fails its check and a full cache, and there is no sequence then.
ActiveSequence adopt(const SessionReader& reader, const SavedSession& session, const Adopted& wanted, Runtime& runtime);

/// What of a sequence is saved.
struct SequenceParts {
  const ActiveSequence* sequence = nullptr;
  const attention::SequenceState* state = nullptr;  ///< of its plan
  std::span<const float> logits;                    ///< [vocabulary] of the last token, or none
  std::span<const std::byte> made = {};             ///< SessionSource::made
};
/// Returns the bytes written. Throws UserError; what was there before is left as it is.
std::int64_t save_parts(const SequenceParts& parts, const std::filesystem::path& file, const Runtime& runtime);

/// Writes the sequence, and logits [vocabulary] of its last token where they are given. Returns the bytes written.
/// Throws UserError; what was there before is left as it is.
std::int64_t save_sequence(const ActiveSequence& sequence, std::span<const float> logits,
                           const std::filesystem::path& file, const Runtime& runtime);

}  // namespace glimpse::engine
