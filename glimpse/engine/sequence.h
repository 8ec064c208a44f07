// A sequence that a program drives by hand: prefill, decode, fork, save. engine.h says what its calls throw, and when.
// One thread at a time, the one that calls its Engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "glimpse/engine/attention_stats.h"
#include "glimpse/plan/plan.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

using text::Token;

/// A sequence driven by hand. Moves only; returns its cache when destroyed. It does not keep its Engine alive.
class Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  std::int64_t length() const;
  const AttentionStats& stats() const;
  void reset_stats();
  /// Runs the plan's prefill in chunks. Returns the logits of the last token, or with `on_logits` hands out those of
  /// every token from `first_wanted` on (position, logits) first. Prompts without a decoded token between them are one.
  /// `go_on` is asked before each chunk; once it says no the rest is not run and there are no logits. Throws UserError
  /// for no tokens, one that is not in the vocabulary and more than memory holds, with nothing done; and what a pass
  /// throws: length() then says how many chunks are in. More tokens may follow either; a token decoded there
  /// closes the prompt, which is then what is in.
  std::span<const float> prefill(std::span<const Token> tokens,
                                 const std::function<void(std::int64_t, std::span<const float>)>& on_logits = {},
                                 std::int64_t first_wanted = 0, const std::function<bool()>& go_on = {});
  /// One token by the plan; logits are valid until the engine's next pass. With `audit` what each head's set captures
  /// is measured beside it. Throws UserError for a token that is not in the vocabulary, and behind a part of a prompt
  /// whose last rows the plan observes, with nothing done; and what a pass throws (engine.h).
  std::span<const float> decode(Token token, bool audit = false);
  /// Cache correction (TidalDecode, section 3.3): K and V of the last `tokens` are replaced by those of a dense pass.
  /// Throws UserError for a plan that forgets tokens, a sequence that has, and for more tokens than there are, with
  /// nothing done; and what a pass throws (engine.h), which breaks the sequence once rows have been replaced.
  void correct(std::int64_t tokens);
  /// The same tokens under another plan; pages are shared until written. Under an equal plan with all that attention
  /// keeps; under another with what can be made from the cache: heat and statistics start empty, and key indices come
  /// along where the plans differ in their budgets alone, else they are built late, but for the digests that pages
  /// have. The heat of a prompt comes along too, until a token is decoded, where both plans observe it alike. Throws
  /// UserError for a plan that does not fit, and for one that could need tokens that a head has forgotten: such a head
  /// is dense in it, or streams by the same window. This sequence is as before then.
  Sequence fork(const plan::Plan& plan) const;
  /// The same of the first `tokens` alone, with what can be made from the cache under any plan. A length inside a
  /// prompt is a part of it: the rest, or another one, may be prefilled. Throws UserError for no tokens or more than
  /// there are, and where a head has forgotten some.
  Sequence fork(const plan::Plan& plan, std::int64_t tokens) const;
  void on_sets(std::function<void(const SetTrace&)> callback);
  /// What is in the cache. Valid until the next call that changes it.
  std::span<const Token> tokens() const;
  /// Of the last token, when the sequence was loaded with them and has not gone on; else empty.
  std::span<const float> logits() const;
  /// Writes all that it takes to go on from here, bit for bit, and the last token's logits where they are given. The
  /// file is replaced whole or, when that fails (UserError), not at all.
  void save(const std::filesystem::path& file, std::span<const float> logits = {}) const;
  /// One cached key row as floats [d] (tests, inspection). Throws UserError for a token that was evicted.
  std::vector<float> key(int layer, int kv_head, std::int64_t position) const;
  std::vector<float> value(int layer, int kv_head, std::int64_t position) const;
  /// All of them, [length, d], at once, where the head forgot none.
  std::vector<float> keys(int layer, int kv_head) const;
  /// What feedback keeps (tests, inspection): heat of blocks, empty when the plan has none (one vector for all layers
  /// unless the plan keeps one a layer); the statistic that the head forgets by, [positions], empty when it keeps none.
  /// All of these throw UserError for a layer or head that the model has not.
  std::vector<float> heat(int layer) const;
  std::vector<float> statistic(int layer, int kv_head) const;
  /// Positions that the head has not forgotten.
  std::vector<std::int32_t> live(int layer, int kv_head) const;
  /// The units of its index (pages, chunks, clusters: kv::KeyIndex::units_of) that a head's search chose to make `set`,
  /// which it handed on in the step before (SetTrace), when nothing came after that step; ascending. Empty for a head
  /// without an index.
  std::vector<std::int32_t> units_of(int layer, int kv_head, std::span<const std::int32_t> set) const;

 private:
  friend class Engine;
  struct Impl;
  explicit Sequence(std::unique_ptr<Impl> impl);
  Impl& impl() const;  ///< throws UserError where there is none, or no engine
  std::unique_ptr<Impl> impl_;
};

/// What Engine::decode gives a sequence; `audit` as in Sequence::decode. The sequence is borrowed.
struct NextToken {
  Sequence* sequence = nullptr;
  Token token = 0;
  bool audit = false;
};

}  // namespace glimpse::engine
