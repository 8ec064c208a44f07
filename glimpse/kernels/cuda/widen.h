// Rows of bytes as rows of 16 bits, queued on a stream: for kernels that read each row of a prompt's past many times,
// and take no bytes (prefill, tiles).
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors:
// as kernels/cuda/operations.h.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// Every slot of a sequence's KV heads: its bytes times its scale, as f16.
struct WidenOp {
  KvTable<Place::device> from;  ///< q8_0
  KvTable<Place::device> to;    ///< f16; as many slots in pages of their own, the same sequences and heads
  std::int32_t sequence = 0;
  std::int32_t most = 0;  ///< slots of a head, at most: the launch is sized by it
};
void widen(Stream& stream, const WidenOp& op);

}  // namespace glimpse::kernels::cuda
