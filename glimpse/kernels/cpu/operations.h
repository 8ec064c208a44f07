// The batched operations on the CPU: each is cut into the items of kernels/attention.h, which threads take one after
// the other. The bits do not depend on their number: attention is split every kSplitTokens and merged in order, as
// everywhere on the CPU. Keeps buffers between calls; one thread at a time calls.
#pragma once

#include <functional>
#include <memory>

#include "glimpse/kernels/ops.h"

namespace glimpse::kernels {

/// Threads that run the items of an operation. Owned by the caller, who keeps it as long as the operations.
class Workers {
 public:
  virtual ~Workers() = default;
  virtual int threads() const = 0;
  /// work(i) on thread i for all i below threads(), at once; returns when all have returned. `work` does not throw.
  virtual void run(const std::function<void(int)>& work) = 0;
};

/// `workers` null: the calling thread alone.
std::unique_ptr<Operations<Place::host>> make_cpu_operations(Workers* workers = nullptr);

}  // namespace glimpse::kernels
