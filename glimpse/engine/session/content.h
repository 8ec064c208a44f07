// What a saved session holds, section by section: whose it is, plan, tokens, logits, tables, the state of attention,
// and the pages of each layer. Reading trusts nothing: every length, count and position is checked before it is used,
// right checksums or not. Functions of their arguments; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "glimpse/attention/saved_state.h"
#include "glimpse/engine/session/file.h"
#include "glimpse/kv/cache.h"
#include "glimpse/plan/plan.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

/// The model and cache that a session belongs to.
struct SessionModel {
  std::uint64_t fingerprint = 0;  ///< of the model's file
  plan::ModelShape shape;
  int vocabulary = 0;
  kernels::KvFormat format;
};

struct SavedSession {
  SessionModel model;
  plan::Plan plan;
  std::vector<text::Token> tokens;
  std::vector<float> logits;  ///< [vocabulary] of the last token; or empty
  std::int64_t prompt_tokens = 0, decode_steps = 0;
  std::int64_t steps = 0;               ///< decoded tokens, for traces
  std::vector<kv::HeadLayout> layouts;  ///< [layer, KV head]

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
  /// No head forgot a token: position == slot everywhere.
  bool whole() const;
};

/// Whose a session is and how much it holds: its first section, read without the model.
struct SessionAbout {
  std::uint64_t fingerprint = 0;
  plan::ModelShape shape;  ///< without the context
  int vocabulary = 0;
  KvType kv_type = KvType::f32;
  std::int64_t tokens = 0, prompt_tokens = 0, decode_steps = 0, steps = 0;
};
/// Both throw UserError for what is damaged or cannot be.
SessionAbout read_session_about(const SessionReader& reader);
plan::Plan read_session_plan(const SessionReader& reader);

/// What is written beside what is in the cache.
struct SessionSource {
  const SavedSession* session = nullptr;  ///< layouts are taken from the cache
  const attention::SequenceState* state = nullptr;
  const kv::Cache* cache = nullptr;
  kv::SequenceId sequence = -1;
  std::span<const std::byte> made = {};  ///< of a kept prefix: how its rows were made (PrefixStore); else empty
};

/// Writes a session's file, in pieces, between which the sequence stays as it is and the cache may do anything else. It
/// may be dropped at any time: what was there before is left as it is, unless publish() has returned.
class SessionPieces {
 public:
  /// Writes all but pages. `session`, `state` and `made` are read here alone. Throws UserError, as the others do.
  SessionPieces(const std::filesystem::path& file, const SessionSource& source);
  /// Writes pages, about so many bytes. False: none is left.
  bool write(std::uint64_t bytes);
  /// Writes what is left of them, and gives all to the system.
  void seal();
  /// Then: waits for the disk, and gives the file its name. Any thread, while no other calls anything.
  void publish() { to_.publish(); }
  /// Both.
  void finish() {
    seal();
    publish();
  }
  std::uint64_t bytes() const { return to_.bytes(); }

 private:
  const kv::Cache& cache_;
  kv::SequenceId sequence_;
  std::vector<std::byte> made_, space_;
  SessionWriter to_;
  int layer_ = 0, head_ = 0;
  kv::Plane plane_ = kv::Plane::k;
  std::int32_t page_ = 0;
};

/// All but pages and state. Throws UserError by name: another model, another KV type, anything that cannot be.
SavedSession read_session(const SessionReader& reader, const SessionModel& mine);

/// The state of all of the session's tokens under its own plan, into a new state of that plan.
void read_state(const SessionReader& reader, const SavedSession& session, attention::SequenceState& state);

/// A new sequence with the session's first `tokens`; fewer than all only of a session that is whole(). Throws
/// UserError, and there is no sequence then: a section that fails its check, a full cache.
kv::SequenceId read_rows(const SessionReader& reader, const SavedSession& session, std::int64_t tokens,
                         kv::Cache& cache);

}  // namespace glimpse::engine
