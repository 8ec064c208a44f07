// A device that runs a model: it owns the memory of the KV cache, the executor and its threads. The engine holds one
// and ids of sequences in its cache; it never asks where bytes lie. One thread at a time; it borrows the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "glimpse/exec/executor.h"

namespace glimpse::exec {

class Backend {
 public:
  virtual ~Backend() = default;
  /// As its maker calls the device; empty: it is the host's processor.
  virtual std::string name() const = 0;
  /// Bytes that a cache may take beside weights of so many bytes; none: not known.
  virtual std::optional<std::int64_t> cache_memory(std::int64_t weight_bytes) const = 0;
  /// Makes the cache and the executor, once. Throws UserError when memory is short.
  virtual void open(const kv::CacheShape& shape) = 0;
  /// After open.
  virtual kv::Cache& cache() = 0;
  virtual Executor& executor() = 0;

  /// Throws UserError, with the cure, for a plan that does not run on this device yet.
  virtual void require(const plan::Plan& plan) const = 0;
  /// Throws UserError where the device does not do `what` yet, as "saying what an index chose".
  virtual void require_records(std::string_view what) const = 0;
};

/// Sequences in the host's memory, computed by the threads of `options`.
std::unique_ptr<Backend> make_cpu_backend(const model::Model& model, const CpuOptions& options);

struct CudaOptions {
  int device = 0;
  int threads = 1;  ///< that convert weights
  KvType kv_type = KvType::bf16;
  int most_rows = 512;  ///< of a pass, for which memory is kept
};
/// Sequences in the memory of a GPU, computed there. Throws UserError where there is no such device, or no kernels for
/// the model's heads or the type of the cache.
std::unique_ptr<Backend> make_cuda_backend(const model::Model& model, const CudaOptions& options);

}  // namespace glimpse::exec
