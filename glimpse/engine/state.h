// What an Engine holds. Inside engine only.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "glimpse/attention/runner.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/session_content.h"
#include "glimpse/exec/executor.h"
#include "glimpse/kv/cache.h"
#include "glimpse/model/model.h"
#include "glimpse/text/boundaries.h"

namespace glimpse::engine {

/// One sequence: its handle in the cache, its plan and what attention keeps of it.
struct ActiveSequence {
  kv::SequenceId id = -1;
  plan::Plan plan;
  attention::SequenceState attention;
  std::int64_t length = 0;
  std::int64_t steps = 0;     ///< decoded tokens
  std::vector<Token> tokens;  ///< [length] what is in the cache
  std::vector<float> logits;  ///< [vocabulary] of the last token, as a saved session brought them; else empty
  AttentionStats stats;
  std::function<void(const SetTrace&)> on_sets;

  void forget_after(std::size_t kept) {
    tokens.resize(kept);
    attention.boundaries.resize(kept);
  }
};

enum class Phase : std::uint8_t { prefill, decode, done };

struct ActiveRequest {
  Request request;
  std::optional<ActiveSequence> sequence;  ///< empty before its first chunk and after the end
  text::Sampler sampler;
  Phase phase = Phase::prefill;
  std::int64_t prefilled = 0;
  Token next = -1;               ///< sampled, not yet fed
  std::int64_t uncorrected = 0;  ///< decoded since the last correction
  Result result;

  explicit ActiveRequest(Request wanted) : request(std::move(wanted)), sampler(request.sampling) {}
};

/// One sequence's part of a pass.
struct PassPart {
  ActiveSequence* sequence = nullptr;
  std::span<const Token> tokens;
  bool decode = false;
  bool corrects = false;        ///< `tokens` are the last ones in the cache
  std::int64_t prompt_end = 0;  ///< not decoding
  enum class Logits : std::uint8_t { none, last, all } logits = Logits::last;
};

/// What of a saved session becomes a sequence: its first `tokens` under a plan, with all that attention keeps or
/// without.
struct Adopted {
  const plan::Plan* plan = nullptr;
  std::int64_t tokens = 0;
  bool state = false;
};

/// Throws UserError for a plan whose heads forget tokens.
void require_correction(const plan::Plan& plan);

struct Engine::State {
  explicit State(const EngineOptions& options);

  EngineOptions options;
  model::Model model;
  text::Tokenizer tokenizer;
  text::BoundaryClassifier boundaries;
  std::int64_t context = 0;
  std::optional<kv::Cache> cache;
  std::unique_ptr<exec::Executor> executor;

  RequestId next_request = 1;
  std::map<RequestId, ActiveRequest> requests;

  // Buffers of a pass, kept.
  std::vector<PassPart> parts;
  std::vector<ActiveRequest*> taking;  ///< requests whose logits the pass gives, in order
  std::vector<Token> tokens;
  std::vector<attention::SequenceRows> rows;
  std::vector<std::int32_t> output_rows;
  bool observed = false;

  plan::ModelShape shape() const;
  /// Throws UserError for a plan that cannot run here; makes what it needs beside the cache.
  void require(const plan::Plan& plan);
  ActiveSequence open(const plan::Plan& plan);
  void close(ActiveSequence& sequence);
  /// Runs `parts`; returns logits of the wanted rows in order.
  std::span<const float> run();
  exec::StepResult forward(const exec::StepBatch& batch);
  /// Notes tokens that the pass appends, with their text boundaries.
  void remember(ActiveSequence& sequence, std::span<const Token> appended) const;
  void observe_if_wanted();
  /// Replaces K and V of the sequence's last `tokens` by those of dense passes (cache correction).
  void correct(ActiveSequence& sequence, std::int64_t tokens);
  void correct_due(std::span<ActiveRequest* const> decoded);
  /// Rows of one pass of a prompt under this plan: tiles of a sparse prefill are not cut.
  std::size_t chunk_rows(const plan::Plan& plan) const;
  void take(ActiveRequest& request, std::span<const float> logits);
  void finish(ActiveRequest& request, FinishReason reason);

  // session.cc: saved sessions
  SessionModel session_model() const;
  ActiveSequence adopt(const SessionReader& reader, const SavedSession& session, const Adopted& wanted);
  /// Returns the bytes written.
  std::int64_t save(const ActiveSequence& sequence, std::span<const float> logits,
                    const std::filesystem::path& file) const;
  /// Takes what the request's file has of its prompt. Throws UserError for a file that is refused.
  void load_session(ActiveRequest& request);
  /// First tokens of prompts that a session held whole, with their logits.
  void answer_loaded();
  /// After the prefill, where the rule says so.
  void save_grown(ActiveRequest& request, std::span<const float> logits);
};

}  // namespace glimpse::engine
