#include "glimpse/engine/session/saved.h"

#include "glimpse/base/error.h"
#include "glimpse/model/fingerprint.h"

namespace glimpse::engine {

SessionModel session_model(const LoadedModel& loaded, const kv::Cache& cache) {
  const model::Model& model = loaded.model;
  return {model::fingerprint(model.file()), loaded.shape(), model.config().vocabulary, cache.shape().format};
}

ActiveSequence adopt(const SessionReader& reader, const SavedSession& session, const Adopted& wanted,
                     const SessionHome& home) {
  ActiveSequence sequence;
  sequence.program = program_of(*wanted.plan, home.programs);
  sequence.attention = attention::SequenceState(sequence.plan(), home.programs.gates);
  if (wanted.state) {
    read_state(reader, session, sequence.attention);
    sequence.steps = session.steps;
  }
  sequence.id = read_rows(reader, session, wanted.tokens, home.cache);
  note_tokens(sequence, std::span(session.tokens).first(static_cast<std::size_t>(wanted.tokens)),
              home.loaded.boundaries);
  sequence.length = wanted.tokens;
  sequence.open_prompt = session.decode_steps == 0 && session.prompt_tokens < wanted.tokens;
  if (wanted.tokens == session.length()) sequence.logits = session.logits;
  return sequence;
}

std::unique_ptr<SessionPieces> begin_parts(const SequenceParts& parts, const std::filesystem::path& file,
                                           const SessionModel& model, const kv::Cache& cache) {
  const ActiveSequence& sequence = *parts.sequence;
  if (sequence.length == 0) throw UserError("nothing to save: the sequence has no tokens yet");
  SavedSession session;
  session.model = model;
  session.plan = sequence.plan();
  session.tokens = sequence.tokens;
  session.logits.assign(parts.logits.begin(), parts.logits.end());
  session.prompt_tokens = parts.state->prompt_tokens;
  session.decode_steps = parts.state->decode_steps;
  session.steps = sequence.steps;
  return std::make_unique<SessionPieces>(file, SessionSource{&session, parts.state, &cache, sequence.id, parts.made});
}

std::int64_t save_sequence(const ActiveSequence& sequence, std::span<const float> logits,
                           const std::filesystem::path& file, const LoadedModel& loaded, const kv::Cache& cache) {
  const SequenceParts parts{&sequence, &sequence.attention, logits};
  const std::unique_ptr<SessionPieces> pieces = begin_parts(parts, file, session_model(loaded, cache), cache);
  pieces->finish();
  return static_cast<std::int64_t>(pieces->bytes());
}

}  // namespace glimpse::engine
