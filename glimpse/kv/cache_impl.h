// What a cache holds, for its own functions alone: sequences, their tables, the pool and the tier. Owned by the cache,
// which says who may call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/kv/cache.h"
#include "glimpse/kv/head_table.h"
#include "glimpse/kv/page_pool.h"
#include "glimpse/kv/page_slots.h"

namespace glimpse::kv {

/// What restore has to undo besides the length: a table that grew, or a token that was freed.
struct JournalEntry {
  enum class Kind : std::uint8_t { grew, freed };
  Kind kind;
  std::int32_t head;
  std::int32_t value;         ///< grew: pages before; freed: slot
  std::int32_t position = 0;  ///< freed: what was in it
};

struct HeldMark {
  std::uint64_t serial;
  std::int64_t length;
  std::size_t journal_size;
};

struct Sequence {
  std::vector<HeadTable> heads;  ///< [layer, head]
  std::int64_t length = 0;
  // Most steps append a token to tables that have a page for it, all alike. So these wait until a table is asked.
  std::int32_t pending = 0;  ///< tokens that every table has beside those that it knows of
  std::int32_t room = 0;  ///< more tokens that may wait so: every table's last page has slots for them, and is its own
  std::uint64_t layout = 0;  ///< Cache::layout
  bool holds_all = false;    ///< Cache::holds_all
  bool has_copies = false;   ///< maybe: some page has a copy in the tier
  std::uint64_t serial = 0;
  std::vector<HeldMark> marks;  ///< oldest first
  /// Empty when no mark is held. While one is, no page with tokens leaves a table, so slots in it stay right.
  std::vector<JournalEntry> journal;
};

struct Cache::Impl {
  Impl(const CacheShape& cache_shape, const MakePageMemory& memory);

  /// Its tables may not know of Sequence::pending.
  Sequence& peek(SequenceId id) {
    check(id >= 0 && static_cast<std::size_t>(id) < sequences.size() && sequences[static_cast<std::size_t>(id)],
          "the sequence exists");
    return *sequences[static_cast<std::size_t>(id)];
  }
  /// To read.
  Sequence& at(SequenceId id) {
    Sequence& sequence = peek(id);
    if (sequence.pending > 0) {
      for (HeadTable& head : sequence.heads) head.take_in(sequence.pending);
      sequence.pending = 0;
    }
    return sequence;
  }
  /// To change its tables, or who reads their pages.
  Sequence& change(SequenceId id) {
    Sequence& sequence = at(id);
    sequence.room = 0;
    sequence.holds_all = false;
    sequence.layout = ++last_layout;
    return sequence;
  }

  std::size_t head_index(int layer, int head) const {
    check(layer >= 0 && layer < shape.layers && head >= 0 && head < shape.kv_heads, "layer and head are in range");
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape.kv_heads) + static_cast<std::size_t>(head);
  }

  SequenceId install(std::unique_ptr<Sequence> sequence);
  std::vector<HeldMark>::iterator held(Sequence& sequence, const Mark& mark);
  std::int64_t pages_short(const Sequence& sequence, std::int64_t tokens);
  std::int64_t room(const Sequence& sequence, std::int64_t asked);
  void require_pages(std::size_t pages) const;  ///< to recall
  void grow_layer(Sequence& sequence, int layer, bool whole_runs);

  CacheShape shape;
  PagePool pool;
  std::unique_ptr<PageSlots> tier;                   ///< null before open_tier
  std::vector<std::unique_ptr<Sequence>> sequences;  ///< [id], null a free id
  std::vector<SequenceId> free_ids;
  std::uint64_t last_serial = 0;  ///< of marks
  std::uint64_t last_table = 0;   ///< Sequence::serial
  std::uint64_t last_layout = 0;
  bool sparing = false;
  std::vector<std::int64_t> needed;  ///< [layer, head] pages that extend still has to add
  HeadTable::Copies copies;          ///< pages that go to the tier or come back
};

}  // namespace glimpse::kv
