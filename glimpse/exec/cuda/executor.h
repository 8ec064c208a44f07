// The executor of one GPU: the layers of a model as kernels on one stream, attention by attention::cuda::Runner. A pass
// whose shape came before is one CUDA graph, made the second time it comes. Nothing waits between the first kernel and
// the logits.
#pragma once

#include <memory>

#include "glimpse/exec/executor.h"
#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::exec::cuda {

/// Converts and copies weights with so many threads. Borrows model, cache (planes of page_memory_on the stream) and
/// stream. Throws UserError when the device's memory is short, cuBLAS is missing, or the cache's format has no kernels.
std::unique_ptr<Executor> make_executor(const model::Model& model, kv::Cache& cache, kernels::cuda::Stream& stream,
                                        int threads);

}  // namespace glimpse::exec::cuda
