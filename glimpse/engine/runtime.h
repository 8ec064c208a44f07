// All that the sequences of an engine run on, whoever drives them: options, model, device, compiled plans, passes. One
// thread at a time, whose calls Busy guards. Inside engine only.
#pragma once

#include <string_view>

#include "glimpse/engine/device.h"
#include "glimpse/engine/loaded_model.h"
#include "glimpse/engine/options.h"
#include "glimpse/engine/pass.h"
#include "glimpse/engine/prefix/prefix_cache.h"
#include "glimpse/engine/prefix/prefix_store.h"
#include "glimpse/engine/programs.h"
#include "glimpse/engine/session/saved.h"

namespace glimpse::engine {

struct Runtime {
  /// Throws UserError for a model or option that cannot be served.
  explicit Runtime(const EngineOptions& wanted);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  LoadedModel loaded;
  EngineOptions options;  ///< threads and context are set
  Device device;
  Programs programs;
  PassRunner passes;
  PassRunner sliced;  ///< of a pass in slices, which may be open while `passes` has others
  PrefixCache prefixes;
  PrefixStore store;
  bool busy = false;  ///< inside a public call that runs passes: callbacks may not start another

  kv::Cache& cache() const { return *device.cache; }
  SessionHome home() { return {loaded, cache(), programs}; }
  /// Between passes: a piece of the kept prefix that gives way next goes to the disk. True: there was something to
  /// write.
  bool write_ahead() { return passes.ahead().empty() && store.write_ahead(prefixes, cache(), programs.gates); }
  /// Throws UserError for a plan that cannot run here; makes what it needs beside the cache.
  void require(const plan::Plan& plan) { require_plan(plan, loaded, device, programs); }
};

/// What `work` returns; where the cache is full for it, kept prefixes give way and it is tried again. Throws CacheFull
/// when none is left.
template <class Work>
auto with_room(Runtime& runtime, const Work& work) {
  for (;;) {
    try {
      return work();
    } catch (const kv::CacheFull&) {
      if (!runtime.prefixes.evict(runtime.cache())) throw;
    }
  }
}

/// Holds a runtime for the length of a public call. Throws UserError when a callback calls what only callers may.
class Busy {
 public:
  Busy(Runtime& runtime, std::string_view call);
  ~Busy() { flag_ = false; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  bool& flag_;
};

}  // namespace glimpse::engine
