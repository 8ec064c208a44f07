// The engine: a model, its cache and its requests. A program needs this header and glimpse/policies/policy.h, which
// makes the plan of a request; examples/ask is one.
//
// Two levels. Requests: submit, step until idle, take results. Sequences: prefill, decode and fork by hand, for
// evaluation and benchmarks. One thread at a time calls an Engine, but for cancel_soon, which any thread may call;
// callbacks run on that thread. Call step, and what else runs a pass, always from the same thread: OpenMP keeps a team
// of threads for each thread that ever ran one, until that thread ends.
//
// Requests share the cache. One that does not fit beside the others waits, those that came first begin first. A step
// takes a row of every request that decodes and chunks of prompts, in turn. When the cache is full, the newest request
// is preempted: its pages wait in a file until there is room again, and its answer is bit for bit the same. Sequences
// are never preempted: their calls throw when the cache is full. What requests leave behind for others
// (EngineOptions::prefix_bytes) gives way before anybody waits, is preempted or fails.
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
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "glimpse/engine/attention_stats.h"
#include "glimpse/engine/lossless.h"
#include "glimpse/engine/options.h"
#include "glimpse/engine/request.h"
#include "glimpse/engine/sequence.h"
#include "glimpse/plan/plan.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

/// Requests that have not ended, and the cache.
struct EngineStats {
  std::int64_t running = 0;                      ///< their prompt is being prefilled, or they decode
  std::int64_t waiting = 0;                      ///< not begun
  std::int64_t preempted = 0;                    ///< begun, and waiting for pages
  std::int64_t preemptions = 0;                  ///< since the engine was made
  std::int64_t steps = 0;                        ///< since then, that ran a pass
  std::int64_t pages_total = 0, pages_free = 0;  ///< of kernels::kPageTokens tokens of one (layer, KV head)
  std::int64_t prefixes = 0, pages_kept = 0;     ///< kept ones, and pages that no request reads beside them
  std::int64_t digests_made = 0;                 ///< of blocks of keys since then (kv::CacheUsage), on a CPU
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
  /// The name of the device that it runs on; empty: this machine's processor.
  std::string device_name() const;
  /// Why the device does not run a plan, with the cure; empty: it does.
  std::string refusal(const plan::Plan& plan) const;
  /// Bytes that one (token, layer, KV head) costs in K plus V.
  std::size_t row_pair_bytes() const;

  /// Wall time of attention in all passes so far, as one thread saw it. Seconds; none where it is not measured.
  std::optional<double> attention_seconds() const;

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
  /// Several requests for one prompt, which is prefilled once: the others wait for the first one's prefill and fork its
  /// sequence, so that each gets what it gets alone. Their stats count the prompt as reused. Where the first ends
  /// before its prompt is in, the next one takes its place. All are queued or none. Throws UserError as submit does,
  /// and for requests that differ in prompt, plan, lossless, session or prompt_logprobs.
  std::vector<RequestId> submit_together(std::vector<Request> requests);
  /// True where an equal request that comes later has no prefill of its own, for the engine keeps what this one leaves
  /// behind (EngineOptions::prefix_bytes) as long as there is room. Of `exact` that hangs on who else runs: false.
  bool keeps_prompt(const Request& request) const;
  /// The sequence of a request that has ended and was asked to keep it: once. None when it never began, and when it was
  /// cancelled while its pages waited and there is no room for them.
  std::optional<Sequence> take(RequestId id);
  /// One forward pass over every decoding request and the next chunks of prompts. False: nothing to do. Throws what
  /// ended the pass for all (above): no request has lost or repeated a token then, and those whose sequences broke are
  /// finished as failed. While sequences and kept requests leave no room for one request alone every step throws:
  /// destroy or release something. A request that does not fit even without them ends as context_full.
  bool step();
  /// A piece of a kept prefix goes to EngineOptions::prefix_folder before its room is needed; step() does the same.
  /// False: there is none to write now.
  bool write_prefixes();
  /// From on_sets: when the pass has ended. What was held back of the answer (Request::stop) is handed out first, or
  /// behind the callback where one of on_token and on_text calls this; one that throws ends the request as failed. Of a
  /// request whose prefill is not completed and that names a session, this and release() write what is prefilled to the
  /// session's file before they return; stats.session says what came of it.
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
  /// One token of each sequence by its plan, in one pass, which costs less than one each. Returns logits [tokens,
  /// vocabulary] in their order, valid until the next pass. Throws UserError as Sequence::decode does, for no tokens,
  /// and for a sequence that is another engine's or named twice, with nothing done; and what a pass throws. What ended
  /// it for one sequence alone is thrown too, of several the first: the others have taken their tokens in.
  std::span<const float> decode(std::span<const NextToken> tokens);
  /// A saved sequence. Under the plan that it was saved with it goes on bit for bit; under another as a fork does.
  /// Throws UserError that names the file: damaged, another model, KV type or version, heads that forgot tokens under
  /// another plan.
  Sequence load(const std::filesystem::path& file, const plan::Plan& plan);

 private:
  friend class Sequence;
  struct Impl;
  std::shared_ptr<Impl> impl_;  ///< shared with nobody; sequences watch it
};

}  // namespace glimpse::engine
