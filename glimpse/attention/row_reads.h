// What the heads of a decoding row read, counted when its pass has run: from the reads that attention was given and the
// counts of the sets that they name. The same for every device. Borrows all that it is given; one thread at a time.
#pragma once

#include <cstdint>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/records.h"
#include "glimpse/kernels/ops.h"

namespace glimpse::attention {

/// KV heads that read alike.
struct HeadReads {
  kernels::Read read;
  std::int64_t slots = 0;  ///< of each, that hold its tokens
  int heads = 1;
  bool compensates = false;  ///< HeadOp::compensates(): of a window, a mean token is read too
};

class RowReads {
 public:
  /// `counts`: of the sets that Read::set numbers.
  RowReads(const SequenceRows& rows, const std::int32_t* counts, ReadCounters& counters);
  /// Returns the slots that each of the heads read; of a set for each query head those of all of them.
  std::int64_t add(const HeadReads& of);
  /// When all heads are counted: what dense attention would have read, and whether this was less.
  void end();

 private:
  const SequenceRows& rows_;
  const std::int32_t* counts_;
  ReadCounters& counters_;
  std::int64_t tokens_;  ///< that the row sees
  bool sparse_ = false;
};

}  // namespace glimpse::attention
