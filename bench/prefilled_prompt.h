// A prompt that runs once for each kind of prefill and is forked for every plan of that kind: dense; dense with the
// last w rows observed, forked w tokens before the end; and the plan's own, where it is sparse or observes all rows.
// Key indices, whose build can take longer than all that is decoded, are built once for all budgets of a method.
// Owns its sequences; the engine outlives it and needs room for kSequences of them. One thread.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/method_arms.h"
#include "glimpse/engine/engine.h"

namespace glimpse::bench {

using engine::Token;

class PrefilledPrompt {
 public:
  /// The dense one with its forks, one sparse or observed one, one with a method's indices, and the fork that decodes.
  static constexpr int kSequences = 4;

  /// Told of each prefill that was run: its kind, tokens and seconds.
  using OnPrefill = std::function<void(const std::string& kind, std::int64_t tokens, double seconds)>;

  /// `arms` are those that start() will be asked for: where the dense prefill is forked.
  PrefilledPrompt(engine::Engine& engine, std::vector<Token> tokens, std::span<const Arm> arms, OnPrefill on_prefill);

  struct Start {
    engine::Sequence sequence;
    std::vector<float> logits;  ///< [vocabulary] after the prompt's last token
    std::string kind;           ///< of the prefill: "dense", "last 32 rows", "own"
  };
  /// The prompt under the arm's plan, to decode from. Arms of one own prefill, and those of one method, should come one
  /// after the other.
  Start start(const Arm& arm);

  /// The prompt after a dense prefill.
  const engine::Sequence& dense();
  std::span<const Token> tokens() const { return tokens_; }

 private:
  struct Own {
    plan::Plan plan;
    engine::Sequence sequence;
    std::vector<float> logits;
  };
  struct Indexed {
    std::string method;
    engine::Sequence sequence;
    std::vector<float> logits;
  };
  Start observe_last(const Arm& arm, std::int64_t dense);
  Start fork_indexed(const Arm& arm, std::int64_t dense);
  Start run_own(const Arm& arm);
  void run_dense();
  /// Tokens of the prompt that come before what the arm's own plan runs of it: 0 to all.
  std::int64_t dense_tokens(const Arm& arm) const;

  engine::Engine& engine_;
  std::vector<Token> tokens_;
  OnPrefill on_prefill_;
  std::map<std::int64_t, std::optional<engine::Sequence>> before_;  ///< by length: forks of the dense prefill
  std::optional<engine::Sequence> dense_;
  std::vector<float> dense_logits_;
  std::optional<Own> own_;
  std::optional<Indexed> indexed_;
};

}  // namespace glimpse::bench
