// What an Engine holds. Inside engine only.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "glimpse/attention/runner.h"
#include "glimpse/engine/engine.h"
#include "glimpse/exec/executor.h"
#include "glimpse/kv/cache.h"
#include "glimpse/model/model.h"

namespace glimpse::engine {

/// One sequence: its handle in the cache, its plan and the sets its heads have published.
struct ActiveSequence {
  kv::SequenceId id = -1;
  plan::Plan plan;
  attention::PublishedSets sets;
  std::int64_t length = 0;
  std::int64_t steps = 0;  ///< decoded tokens
  AttentionStats stats;
  std::function<void(const SetTrace&)> on_sets;
};

enum class Phase : std::uint8_t { prefill, decode, done };

struct ActiveRequest {
  Request request;
  std::optional<ActiveSequence> sequence;  ///< empty before its first chunk and after the end
  text::Sampler sampler;
  Phase phase = Phase::prefill;
  std::int64_t prefilled = 0;
  Token next = -1;  ///< sampled, not yet fed
  Result result;

  explicit ActiveRequest(Request wanted) : request(std::move(wanted)), sampler(request.sampling) {}
};

/// One sequence's part of a pass.
struct PassPart {
  ActiveSequence* sequence = nullptr;
  std::span<const Token> tokens;
  bool decode = false;
  enum class Logits : std::uint8_t { none, last, all } logits = Logits::last;
};

struct Engine::State {
  explicit State(const EngineOptions& options);

  EngineOptions options;
  model::Model model;
  text::Tokenizer tokenizer;
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
  void require(const plan::Plan& plan) const;
  ActiveSequence open(const plan::Plan& plan);
  void close(ActiveSequence& sequence);
  /// Runs `parts`; returns logits of the wanted rows in order.
  std::span<const float> run();
  void observe_if_wanted();
  void take(ActiveRequest& request, std::span<const float> logits);
  void finish(ActiveRequest& request, FinishReason reason);
};

}  // namespace glimpse::engine
