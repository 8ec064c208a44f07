// A thread-safe front over an Engine: any thread submits and cancels, each request's events are read from its Stream.
// One thread of the Service alone calls the Engine, and runs passes as long as there is a request.
//
// The Engine outlives the Service. Nobody else calls it meanwhile, but for what never changes: tokenizer, shape,
// context, threads, kv_type, row_pair_bytes. A thread that ran passes before keeps its OpenMP team; while that thread
// lives, the Service's passes may take some percent longer.
//
// No code of a caller's runs on the Service's thread but Wake and Watcher, and a reader that is slow, or never reads,
// stalls no pass: events that nobody took are put together. Of prefill progress the last stays, tokens are appended to
// those that wait. So a stream holds at most the tokens of its own answer, which the request's max_tokens and the
// context bound.
//
// With EngineOptions::slice_seconds, as kServedSliceSeconds, no stream waits for the whole of another's chunk.
//
// What fails. submit throws where the queue is full. What Engine::submit refuses, and a request that fails later, is
// FinishReason::failed with the error in the stream's last event. A pass that fails for all requests ends the one that
// came last, with that error; the others go on. Where the Service has no memory for its own lists it ends: all requests
// end as failed, and submit throws.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/engine/engine.h"
#include "glimpse/engine/service_metrics.h"
#include "glimpse/engine/stream.h"
#include "glimpse/engine/watcher.h"

namespace glimpse::engine {

struct ServiceOptions {
  int queue = 64;   ///< requests that may wait for their turn
  int running = 8;  ///< requests that the Engine works on at a time
};

/// The queue is full now; the same request may be submitted again later.
class QueueFull : public UserError {
 public:
  using UserError::UserError;
};

/// Called on the Service's thread behind each event of one stream, the last one too, and behind each Watcher::step;
/// never after the end of the Service: for a caller with an event loop of its own, which it tells to read the stream.
/// It must not wait, throw, or call the Service or the stream.
using Wake = std::function<void()>;

class Service {
 public:
  /// Throws UserError for options below 1, and where the system gives no thread.
  explicit Service(Engine& engine, const ServiceOptions& options = {});
  /// Waits for the pass that runs. All requests that have not ended are cancelled.
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Queues the request; never waits for a pass. Throws QueueFull, and UserError for a request with callbacks or
  /// `keep`, which are for callers of the Engine itself. Any thread.
  Stream submit(Request request, const Wake& wake = {});
  /// So many answers to one prompt, which is prefilled once (Engine::submit_together): a stream each, those that draw
  /// tokens with the seeds seed, seed + 1, ... Where the engine keeps the prompt (Engine::keeps_prompt) each begins
  /// when there is room for it, else all begin together; as many requests as `running` may begin before they do. Throws
  /// UserError also for less than one answer, and for more than ServiceOptions::running or queue.
  /// `watcher`: of one answer alone.
  std::vector<Stream> submit(Request request, int answers, const Wake& wake = {},
                             std::shared_ptr<Watcher> watcher = {});
  /// Any thread.
  ServiceMetrics metrics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glimpse::engine
