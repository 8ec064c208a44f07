// What a Service tells of one request while it runs, beside its Stream: what each head read, step by step. Given to
// Service::submit; the Service keeps it until the request has ended, and the caller may keep it longer.
//
// Called on the Service's thread, sets() on one of the pass's threads; one call at a time. A function must not throw,
// wait, or call the Service or the stream.
#pragma once

#include "glimpse/engine/attention_stats.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

class Watcher {
 public:
  Watcher() = default;
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  virtual ~Watcher() = default;

  /// What one KV head read in a decode step, layer by layer. A pass that fails may have told some of a step's heads:
  /// the step comes again.
  virtual void sets(const SetTrace& trace) noexcept = 0;
  /// A token of the answer. One that is held back for a stop string comes behind the step that feeds it.
  virtual void token(text::Token token) noexcept = 0;
  /// Behind each pass while the request runs, the last one too: sums since its prefill. They are as they were where
  /// the pass had no decode step of it.
  virtual void step(const AttentionStats& so_far) noexcept = 0;
};

}  // namespace glimpse::engine
