#include "glimpse/exec/ggml/owned.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <mutex>

#include "glimpse/base/error.h"
#include "glimpse/base/resources.h"

namespace glimpse::exec {
namespace {

/// ggml keeps the callback in a plain global, which engines on two threads must not both write.
void trap_aborts() {
  static std::once_flag once;
  std::call_once(once, [] { ggml_set_abort_callback(AbortTrap::aborting); });
}

}  // namespace

void FreeGgml::operator()(ggml_backend_buffer* buffer) const {
  ggml_backend_buffer_free(buffer);
}
void FreeGgml::operator()(ggml_context* context) const {
  ggml_free(context);
}
void FreeGgml::operator()(ggml_gallocr* allocator) const {
  ggml_gallocr_free(allocator);
}
void FreeGgml::operator()(ggml_threadpool* pool) const {
  ggml_threadpool_free(pool);
}

ContextPointer make_context(std::size_t bytes) {
  const AbortTrap trap("a graph's headers");
  trap_aborts();
  ContextPointer context(ggml_init({bytes, nullptr, true}));
  check(context != nullptr, "ggml makes a context or aborts");
  return context;
}

PoolPointer make_pool(int threads) {
  const AbortTrap trap("threads");
  trap_aborts();
  require_threads(threads - 1);
  // The pool and a state of each thread (ggml_compute_state: a mask of 512 processors), which ggml writes to unseen.
  require_heap((std::size_t{64} << 10) + static_cast<std::size_t>(threads) * 1024, "threads");
  ggml_threadpool_params params = ggml_threadpool_params_default(threads);
  PoolPointer pool(ggml_threadpool_new(&params));
  check(pool != nullptr, "ggml makes a thread pool or aborts");
  return pool;
}

}  // namespace glimpse::exec
