// The engine: a model, its cache and its requests. A program needs this header and glimpse/policies/policy.h, which
// makes the plan of a request; examples/ask is one.
//
// Two levels. Requests: submit, step until idle, take results. Sequences: prefill, decode and fork by hand, for
// evaluation and benchmarks. One thread at a time calls an Engine, but for cancel_soon, which any thread may call;
// callbacks run on that thread, but on_sets, which runs on one of the pass's threads, one call at a time. Call step,
// and what else runs a pass, always from the same thread: OpenMP keeps a team of threads for each thread that ever ran
// one, until that thread ends.
//
// Requests share the cache. One that does not fit beside the others waits, those that came first begin first. A step
// takes a row of every request that decodes and chunks of prompts, in turn. When the cache is full, the newest request
// is preempted: its pages wait in a file until there is room again, and its answer is bit for bit the same. Sequences
// are never preempted: their calls throw when the cache is full.
//
// Callbacks may call cancel, finished, result and what only reads the engine; on_token, on_text, on_prefill and
// on_logits also submit, open and load. step, release, and prefill, decode, correct, fork and save of any Sequence
// throw a UserError there. No callback destroys a Sequence.
//
// What fails. Before anything has changed (the cache is full): the call throws a UserError, and may be made again when
// there is room. For one sequence (a callback threw, the disk of its tier is full, a correction finds no room): its
// request ends as FinishReason::failed, or its Sequence's call throws; the others go on. For all (memory is short): the
// call throws. A sequence that was in a failed pass is as before where all that it keeps is provably so; else it is
// broken: requests on it end as failed, and calls of a Sequence throw a UserError that says so. A bug (InternalError)
// is thrown whatever else it did.
//
// Misuse throws a UserError and changes nothing: the id of a request that never was or has been released; any call of a
// Sequence that was moved from, that a request took, or whose Engine is gone (destroying or assigning to it is right at
// any time); a Sequence given to another Engine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/base/dtype.h"
#include "glimpse/engine/lossless.h"
#include "glimpse/engine/session/use.h"
#include "glimpse/plan/plan.h"
#include "glimpse/text/sampler.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

using text::Token;

/// What measured best at no visible loss: bf16 widens to float with one shift, and its 8 bits of mantissa move the
/// logits less than 8-bit weights do (docs/benchmarks.md).
inline constexpr KvType kDefaultKvType = KvType::bf16;

struct EngineOptions {
  std::filesystem::path model;
  std::int64_t context = 0;  ///< tokens of one sequence; 0: as many as the model was made for
  int sequences = 1;         ///< sequences that the cache has room for at full context, as far as memory goes
  int threads = 0;           ///< 0: one for each physical core that the process may use
  KvType kv_type = kDefaultKvType;
  std::int64_t cache_bytes = 0;  ///< that K and V may grow to at most; 0: what the weights leave of available memory
                                 ///< (indices and low-rank keys come beside it)
  int prefill_chunk = 512;       ///< prompt rows of one request in a forward pass
  int step_tokens = 0;  ///< rows of a step: of all that decode, then chunks of prompts, in turn, as many as fit
                        ///< and at least one; 0: prefill_chunk
  /// Of the file where plans with a host tier keep cold pages, and preempted requests theirs. Empty: /var/tmp, or /tmp
  /// where only that is on a disk.
  std::filesystem::path tier_folder;
};

/// What attention read while decoding, counted from the kernels' work lists.
struct AttentionStats {
  std::int64_t k_rows = 0, v_rows = 0;              ///< rows read, all layers and KV heads
  std::int64_t dense_k_rows = 0, dense_v_rows = 0;  ///< what dense attention would have read
  std::int64_t bytes_read = 0;                      ///< of K, V, key indices and low-rank factors
  std::int64_t dense_bytes = 0;                     ///< of K and V that dense attention would have read
  std::int64_t index_bytes = 0;                     ///< of bytes_read: key indices alone
  std::int64_t dense_steps = 0, sparse_steps = 0;   ///< sparse: some head read less than every token
  /// Softmax mass that a head's set captured, the mean over the group: of sets chosen from exact scores, and of every
  /// head in audited steps.
  struct Mass {
    double mean = 1, least = 1;
    std::int64_t sets = 0;  ///< 0: none is known
    Mass& operator+=(const Mass& other);
  };
  Mass coverage, audited;
  std::int64_t audits = 0;
  double audit_s = 0;  ///< of all threads together, this sequence's alone; part of the decoding time
  /// A host tier: pages that a set needed and that were brought back, or found resident; the most that one head kept
  /// resident in a sparse step, none without a tier.
  std::int64_t recalled_pages = 0, recalled_bytes = 0, resident_hits = 0;
  std::optional<std::int64_t> resident_tokens;
  std::int64_t index_memory = 0;  ///< bytes that key indices and low-rank factors hold
  double index_build_s = 0;       ///< that building them took, of all threads together
  /// Sums up; of resident_tokens and index_memory the larger stays.
  AttentionStats& operator+=(const AttentionStats& other);
  /// bytes_read over dense_bytes, the share that every report gives; 1 before the first decoded token. More than 1
  /// where sets cost more than they save: to choose them reads K or an index too, and query heads with sets of their
  /// own read a row once each.
  double kept_ratio() const;
};

/// What one KV head read and handed on in one decode step. Lists are valid during the callback.
struct SetTrace {
  std::int64_t step = 0;      ///< decode steps of the sequence before this one
  std::int64_t position = 0;  ///< of the token whose query attended
  int layer = 0, kv_head = 0;
  plan::RoleKind role = plan::RoleKind::dense;
  std::int64_t budget = 0;
  bool reads_all = false;                                 ///< all tokens up to `position`
  std::span<const std::int32_t> tokens;                   ///< positions read, unless reads_all
  std::span<const std::vector<std::int32_t>> query_sets;  ///< a set per query head, where the plan makes them
  bool publishes = false, publishes_all = false;
  std::span<const std::int32_t> published;
  std::span<const float> query;    ///< [g, d] after RoPE
  std::optional<double> coverage;  ///< softmax mass of what was read, the mean over the group; audited steps alone
};

/// stop: the answer came to one of Request::stop.
enum class FinishReason : std::uint8_t { none, end_of_text, length, context_full, cancelled, failed, stop };
std::string_view name(FinishReason reason);

/// Lossless decoding, in tokens and passes.
struct LosslessStats {
  std::int64_t drafted = 0, accepted = 0;
  std::int64_t verify_passes = 0;
  std::int64_t dense_steps = 0;      ///< where drafting did not pay
  double draft_s = 0, verify_s = 0;  ///< parts of decode_s
};

struct RequestStats {
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  /// Of the prompt: from a session or from the sequence that the request went on from; and computed, in prefill_s.
  /// Fewer than all together: the prefill was not completed.
  std::int64_t reused_tokens = 0, prefilled_tokens = 0;
  double prefill_s = 0, decode_s = 0;
  double correction_s = 0;  ///< beside decode_s
  std::int64_t corrections = 0;
  /// Wall time since submit() of the first chunk (or what a session gave), and of the first and the last token; -1: not
  /// yet. Seconds.
  double first_chunk_s = -1, first_token_s = -1, last_token_s = -1;
  double waited_s = 0;  ///< before it began and while it was preempted
  std::int64_t preemptions = 0;
  LosslessStats lossless;
  AttentionStats attention;
  std::optional<SessionUse> session;  ///< of a request that names one
};

struct Request {
  std::vector<Token> prompt;
  plan::Plan plan;
  text::SamplingOptions sampling;
  std::int64_t max_tokens = -1;    ///< -1: until the model ends or the context is full
  bool ignore_end = false;         ///< go on after an end-of-text token (benchmarks)
  std::int64_t correct_every = 0;  ///< cache correction of the last so many decoded tokens, each time; 0: never
  std::int64_t audit_every = 0;  ///< every so many decoded tokens the true coverage of every head is measured; 0: never
  bool lossless = false;         ///< the answer is dense attention's: the prompt is prefilled densely, the plan
                                 ///< drafts, a dense pass verifies
  int draft_tokens = 0;          ///< lossless: so many each time, at most kMostDrafts; 0: as many as should pay
  bool keep = false;             ///< when it has ended, Engine::take() hands its sequence over
  /// A saved session: what it has of the prompt is not prefilled again; made or replaced after the prefill where it is
  /// missing or the prompt has grown (docs/sessions.md), and after a part of it where the request is cancelled
  /// there. A file that is refused, or in a folder that cannot be written to, is left as it is.
  std::optional<std::filesystem::path> session;
  /// The answer ends where its text comes to one of these, none of them empty. Result::tokens then ends before the
  /// token that completes it, and no byte of the stop string or behind it is handed out: tokens and text are held back
  /// while they may be its beginning.
  std::vector<std::string> stop;
  /// Each of Result::tokens with its bytes, without those of a stop string.
  std::function<void(Token token, std::string_view bytes)> on_token;
  /// The answer's text in whole UTF-8 sequences (bytes that are none come as U+FFFD), all that comes before a stop
  /// string. After on_token of the same token.
  std::function<void(std::string_view text)> on_text;
  /// After each chunk. A request that had to give its pages back and could not keep them begins again.
  std::function<void(std::int64_t done, std::int64_t total)> on_prefill;
  std::function<void(const SetTrace&)> on_sets;
};

struct Result {
  std::vector<Token> tokens;
  FinishReason reason = FinishReason::none;
  std::string error;  ///< failed: what ended it
  RequestStats stats;
};

using RequestId = std::int64_t;

/// Requests that have not ended, and the cache.
struct EngineStats {
  std::int64_t running = 0;                      ///< their prompt is being prefilled, or they decode
  std::int64_t waiting = 0;                      ///< not begun
  std::int64_t preempted = 0;                    ///< begun, and waiting for pages
  std::int64_t preemptions = 0;                  ///< since the engine was made
  std::int64_t steps = 0;                        ///< since then, that ran a pass
  std::int64_t pages_total = 0, pages_free = 0;  ///< of kernels::kPageTokens tokens of one (layer, KV head)
};

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
  /// throws (above): length() then says how many chunks are in. More tokens may follow either; a token decoded there
  /// closes the prompt, which is then what is in.
  std::span<const float> prefill(std::span<const Token> tokens,
                                 const std::function<void(std::int64_t, std::span<const float>)>& on_logits = {},
                                 std::int64_t first_wanted = 0, const std::function<bool()>& go_on = {});
  /// One token by the plan; logits are valid until the engine's next pass. With `audit` what each head's set captures
  /// is measured beside it. Throws UserError for a token that is not in the vocabulary, and behind a part of a prompt
  /// whose last rows the plan observes, with nothing done; and what a pass throws (above).
  std::span<const float> decode(Token token, bool audit = false);
  /// Cache correction (TidalDecode, section 3.3): K and V of the last `tokens` are replaced by those of a dense pass.
  /// Throws UserError for a plan that forgets tokens, a sequence that has, and for more tokens than there are, with
  /// nothing done; and what a pass throws (above), which breaks the sequence once rows have been replaced.
  void correct(std::int64_t tokens);
  /// The same tokens under another plan; pages are shared until written. Under an equal plan with all that attention
  /// keeps; under another with what can be made from the cache: heat and statistics start empty, and key indices come
  /// along where the plans differ in their budgets alone, else they are built late. Throws UserError for a plan that
  /// does not fit, and for one that could need tokens that a head has forgotten: such a head is dense in it, or streams
  /// by the same window. This sequence is as before then.
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
  /// What feedback keeps (tests, inspection): heat of blocks, empty when the plan has none (one vector for all layers
  /// unless the plan keeps one a layer); the statistic that the head forgets by, [positions], empty when it keeps none.
  /// All of these throw UserError for a layer or head that the model has not.
  std::vector<float> heat(int layer) const;
  std::vector<float> statistic(int layer, int kv_head) const;
  /// Positions that the head has not forgotten.
  std::vector<std::int32_t> live(int layer, int kv_head) const;
  /// The units of its index (pages, chunks, clusters: kv::KeyIndex::units_of) that a head's search chose in the step
  /// before, when nothing came after that step: a list for each set that it made, one or one for each query head, each
  /// ascending. Empty for a head without an index, before the first step, and where the head read everything.
  std::vector<std::vector<std::int32_t>> chosen_units(int layer, int kv_head) const;

 private:
  friend class Engine;
  struct Impl;
  explicit Sequence(std::unique_ptr<Impl> impl);
  Impl& impl() const;  ///< throws UserError where there is none, or no engine
  std::unique_ptr<Impl> impl_;
};

class Engine {
 public:
  /// Throws UserError for a model or option that cannot be served.
  explicit Engine(const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const text::Tokenizer& tokenizer() const;
  plan::ModelShape shape() const;
  /// Of the model's file, by which its sessions and profiles are known (model::fingerprint, at its cost).
  std::uint64_t fingerprint() const;
  std::int64_t context() const;
  int threads() const;
  KvType kv_type() const;
  /// Bytes that one (token, layer, KV head) costs in K plus V.
  std::size_t row_pair_bytes() const;

  /// Wall time of attention in all passes so far, as one thread saw it. Seconds.
  double attention_seconds() const;

  /// While on, passes sum up how far each layer's attention turns the residual stream (Kascade, section 3.3); turning
  /// it on starts anew. Costs little; for calibration.
  void measure_change(bool on);
  /// [layers] mean over the rows of 1 - cosine(x, x + attention(x)), x the stream that enters the layer. A layer that
  /// had no rows, as the last one in passes without logits, has 0.
  std::vector<double> attention_change() const;

  /// Checks and queues. Throws UserError: an empty prompt, one longer than the context or than memory holds, a plan
  /// that does not fit. One that only has no room now waits.
  RequestId submit(Request request);
  /// The same, going on from a sequence of this engine, which it takes: what it has of the prompt is not prefilled
  /// again, by the rule of saved sessions. A sequence that is of no use stays, and so does it when this throws.
  RequestId submit(Request request, Sequence&& start);
  /// The sequence of a request that has ended and was asked to keep it: once. None when it never began, and when it was
  /// cancelled while its pages waited and there is no room for them.
  std::optional<Sequence> take(RequestId id);
  /// One forward pass over every decoding request and the next chunks of prompts. False: nothing to do. Throws what
  /// ended the pass for all (above): no request has lost or repeated a token then, and those whose sequences broke are
  /// finished as failed. While sequences and kept requests leave no room for one request alone every step throws:
  /// destroy or release something. A request that does not fit even without them ends as context_full.
  bool step();
  /// From on_sets: when the pass has ended. Of a request whose prefill is not completed and that names a session, this
  /// and release() write what is prefilled to the session's file before they return; stats.session says what came of
  /// it.
  void cancel(RequestId id);
  /// The same from any thread, at any time while the engine lives: the request ends at the latest at the end of the
  /// next step. A chunk of its prompt that is running stops in its middle and counts as not begun. Nothing for an id
  /// that is not there (any more).
  void cancel_soon(RequestId id);
  bool finished(RequestId id) const;
  EngineStats stats() const;
  /// What it has so far; final when finished. release() forgets it.
  const Result& result(RequestId id) const;
  /// Cancels the request where it has not ended, as cancel() does, and gives back all that it holds.
  void release(RequestId id);

  Sequence open(const plan::Plan& plan);
  /// A saved sequence. Under the plan that it was saved with it goes on bit for bit; under another as a fork does.
  /// Throws UserError that names the file: damaged, another model, KV type or version, heads that forgot tokens under
  /// another plan.
  Sequence load(const std::filesystem::path& file, const plan::Plan& plan);

 private:
  friend class Sequence;
  struct State;
  std::shared_ptr<State> state_;  ///< shared with nobody; sequences watch it
};

}  // namespace glimpse::engine
