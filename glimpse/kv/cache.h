// The paged KV cache: one pool of pages for all sequences, layers and KV heads; page tables with reference counts;
// fork, mark / restore / commit, and freeing of single heads' tokens.
//
// The cache owns all K and V. Sequences are handles into it. One thread at a time may call the functions that change
// tables; views may be read, and rows of distinct pages written, by many threads between two such calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "glimpse/kernels/views.h"

namespace glimpse::kv {

struct CacheShape {
  int layers = 0;
  int kv_heads = 0;
  kernels::KvFormat format;
  std::int64_t capacity_tokens =
      0;  ///< tokens of all sequences together, per (layer, KV head); rounded up to whole runs
};

/// Pages handed out together, so that streaming over one head stays sequential.
inline constexpr int kRunPages = 16;

using SequenceId = std::int32_t;

/// A point to go back to. A value; valid until it is restored or committed, or an older mark is.
struct Mark {
  SequenceId sequence = -1;
  std::uint64_t serial = 0;
};

struct CacheUsage {
  std::size_t pages_total = 0;
  std::size_t pages_free = 0;  ///< in no table
  std::size_t bytes_reserved = 0;
};

class Cache {
 public:
  /// Reserves address space, touches none of it. Throws UserError when the system refuses, naming a smaller -c.
  explicit Cache(const CacheShape& shape);
  ~Cache();
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;

  const CacheShape& shape() const;
  CacheUsage usage() const;

  /// An empty sequence.
  SequenceId create();
  /// A second sequence with the same tokens. Pages are shared until either side writes to one (copy on write).
  SequenceId fork(SequenceId source);
  /// Returns its pages that nobody else reads. Its marks die.
  void destroy(SequenceId sequence);

  /// Logical tokens: the position that the next appended token gets.
  std::int64_t length(SequenceId sequence) const;

  /// Gives `tokens` more logical positions to every (layer, head): reserves pages, copies shared last pages. After it
  /// the new slots are writable through view(). Throws UserError and changes nothing when the pool is full.
  void extend(SequenceId sequence, std::int64_t tokens);

  /// The head's table. Valid until the next call that changes this sequence's tables.
  kernels::HeadView view(SequenceId sequence, int layer, int head) const;

  /// Frees single tokens of one head for good. `positions` ascending, each present. Slots keep their logical
  /// positions; a page whose tokens are all free goes back to the pool (after commit, when a mark is held).
  void free_tokens(SequenceId sequence, int layer, int head, std::span<const std::int32_t> positions);
  /// Tokens of this head that are not freed.
  std::int64_t live_tokens(SequenceId sequence, int layer, int head) const;

  /// Marks nest. restore undoes every extend and free_tokens since the mark and ends it; commit keeps them and ends it.
  Mark mark(SequenceId sequence);
  void restore(const Mark& mark);
  void commit(const Mark& mark);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace glimpse::kv
