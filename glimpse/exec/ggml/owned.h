// Owners of what ggml makes, and how it is made where memory may be short: ggml's own functions end the process then,
// or write to what they did not get; these throw UserError. Any thread.
#pragma once

#include <cstddef>
#include <memory>

struct ggml_backend_buffer;
struct ggml_context;
struct ggml_gallocr;
struct ggml_tensor;
struct ggml_threadpool;

namespace glimpse::exec {

struct FreeGgml {
  void operator()(ggml_backend_buffer* buffer) const;
  void operator()(ggml_context* context) const;
  void operator()(ggml_gallocr* allocator) const;
  void operator()(ggml_threadpool* pool) const;
};
using BufferPointer = std::unique_ptr<ggml_backend_buffer, FreeGgml>;
using ContextPointer = std::unique_ptr<ggml_context, FreeGgml>;
using AllocatorPointer = std::unique_ptr<ggml_gallocr, FreeGgml>;
using PoolPointer = std::unique_ptr<ggml_threadpool, FreeGgml>;

/// A context for headers of tensors and graphs, of so many bytes; no data.
ContextPointer make_context(std::size_t bytes);
PoolPointer make_pool(int threads);

}  // namespace glimpse::exec
