// The paged KV cache: one pool of pages for all sequences, layers and KV heads; page tables with reference counts;
// fork, mark / restore / commit, freeing of single heads' tokens, and a tier below: pages that wait in a file or in
// memory of the host.
//
// The cache owns all K and V, and what is made of pages once for all who read them. Sequences are handles into it. One
// thread at a time may call the functions that change tables; views may be read, and rows of distinct pages written, by
// many threads between two such calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/kernels/views.h"
#include "glimpse/kv/page_memory.h"

namespace glimpse::kv {

struct CacheShape {
  int layers = 0;
  int kv_heads = 0;
  kernels::KvFormat format;
  std::int64_t capacity_tokens =
      0;  ///< tokens of all sequences together, per (layer, KV head); rounded up to whole runs
  std::string cure = "use a larger context (-c) or fewer sequences";  ///< for errors of a full cache
};

class PageDigests;

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
  std::size_t tier_bytes = 0;     ///< of pages with a copy in the tier
  std::int64_t digests_made = 0;  ///< of blocks, since the cache was made; those that a saved index brought count
};

/// There are not enough free pages, and nothing has changed.
class CacheFull : public UserError {
 public:
  using UserError::UserError;
};

/// A page of a head.
struct HeadPage {
  int layer = 0, head = 0;
  std::int32_t page = 0;  ///< in the head's table
};

/// Where pages of the tier lie: K, then V, of slot s are the (s % piece_slots)th of piece s / piece_slots.
struct WaitingPages {
  std::span<std::byte* const> pieces;  ///< valid until pages are spilled or put away
  std::int32_t piece_slots = 1;
};

/// How one head's tokens lie in its slots, as a saved session brings it.
struct HeadLayout {
  std::int32_t slots = 0;
  std::vector<std::int32_t> positions;  ///< [slots] ascending, -1 a freed slot; empty: slot == position
};

class Cache {
 public:
  /// Reserves memory, touches none of it. Throws UserError when the system refuses, naming a smaller -c.
  explicit Cache(const CacheShape& shape, const MakePageMemory& memory = make_host_page_memory);
  ~Cache();
  Cache(Cache&&) noexcept;
  Cache& operator=(Cache&&) noexcept;

  const CacheShape& shape() const;
  CacheUsage usage() const;

  /// An empty sequence.
  SequenceId create();
  /// A second sequence with the same tokens. Pages are shared until either side writes to one (copy on write).
  SequenceId fork(SequenceId source);
  /// A sequence of `length` tokens whose heads, [layer, head], lie so: `length` slots, or with positions below it, the
  /// last one among them. Its rows are to be written through view(). Throws CacheFull.
  SequenceId adopt(std::int64_t length, std::span<const HeadLayout> heads);
  /// Returns its pages that nobody else reads. Its marks die.
  void destroy(SequenceId sequence);

  /// Whose page table it is: no other sequence ever has this number, and when pages came back by bring_back or
  /// recall_all it is a new one. For those that keep a copy of the table.
  std::uint64_t serial(SequenceId sequence) const;

  /// Changes with the pages and positions of its tables: while it is the same, tables have at most got slots on pages
  /// that they had, as many as the sequence has tokens more.
  std::uint64_t layout(SequenceId sequence) const;

  /// Of the whole cache: changes where K and V come into pages otherwise than by a pass, as when a page that forks
  /// share is copied. On a device such work is queued.
  std::uint64_t changes() const;

  /// Logical tokens: the position that the next appended token gets.
  std::int64_t length(SequenceId sequence) const;

  /// Gives `tokens` more logical positions to every (layer, head): reserves pages, copies shared last pages. After it
  /// the new slots are writable through view(). Throws CacheFull.
  void extend(SequenceId sequence, std::int64_t tokens);
  /// Free pages that extend by so many tokens needs, and those that the sequence has in its tables.
  std::int64_t pages_to_extend(SequenceId sequence, std::int64_t tokens) const;
  std::int64_t pages_held(SequenceId sequence) const;
  /// While it is on, extend and adopt take no more pages than they need; off, as at first, they take whole runs where
  /// they can.
  void set_sparing(bool on);
  /// Gives back the pages that extend took in reserve.
  void trim(SequenceId sequence);

  /// Takes the last `tokens` back as if they had never been appended. For heads that freed none of them, and not while
  /// a mark is held. Throws CacheFull when pages wait in the tier and the pool has no room for them.
  void truncate(SequenceId sequence, std::int64_t tokens);

  /// The head's table. Valid until the next call that changes this sequence's tables; spill and recall change page
  /// numbers in place. Pages that wait in the tier must not be read.
  kernels::HeadView view(SequenceId sequence, int layer, int head) const;
  /// Those of all heads, [layers, kv_heads]; replaces `views`.
  void views(SequenceId sequence, std::vector<kernels::HeadView>& views) const;

  /// Makes the last `tokens` writable in place through view(): shared pages are copied. For heads that never freed a
  /// token. Throws CacheFull when the pool has no pages for the copies. No mark undoes the writes.
  void rewrite(SequenceId sequence, std::int64_t tokens);

  /// Frees single tokens of one head for good. `positions` ascending, each present. Tokens keep their logical
  /// positions; a page whose tokens are all free goes back to the pool (after commit, when a mark is held).
  void free_tokens(SequenceId sequence, int layer, int head, std::span<const std::int32_t> positions);
  /// Moves the rows of a head together over its freed slots, in order, when these are over an eighth of them and two
  /// pages: so memory follows what is kept. True when it did; not while a mark is held, and not when the rows lie on
  /// shared pages and the pool has none left to copy them to.
  bool compact(SequenceId sequence, int layer, int head);
  /// Digests on the pages, for indices over their keys: null where the host does not read pages in place.
  PageDigests* digests() const;
  /// Bytes of those on the sequence's pages, whoever else has them.
  std::size_t digest_bytes(SequenceId sequence) const;

  /// Tokens of this head that are not freed.
  std::int64_t live_tokens(SequenceId sequence, int layer, int head) const;
  /// True where it is known, without a look at the heads, that they freed none.
  bool holds_all(SequenceId sequence) const;
  /// Of all heads, [layers, kv_heads]; replaces `tokens`.
  void live_tokens(SequenceId sequence, std::vector<std::int64_t>& tokens) const;

  /// Makes the tier, once; a second call does nothing. A host's is a file in `folder`; a device's lies in the host's
  /// memory (PageMemory::make_waiting). Throws UserError when that fails.
  void open_tier(const std::filesystem::path& folder);
  /// Sends full pages, resident, of heads that never freed a token to the tier and gives them back to the pool. Not
  /// while a mark is held (may_spill). Throws UserError and changes nothing when the tier has no room.
  void spill(SequenceId sequence, std::span<const HeadPage> pages);
  bool may_spill(SequenceId sequence) const;
  /// Brings waiting pages back. Throws CacheFull.
  void recall(SequenceId sequence, std::span<const HeadPage> pages);
  /// Brings everything back, and nothing of the sequence is left in the tier: before it is read whole, written to, or
  /// loses tokens.
  void recall_all(SequenceId sequence);
  std::int64_t waiting_pages(SequenceId sequence, int layer, int head) const;
  /// The same page by page, a bit for each; what is behind the end is resident. Valid until tables change.
  std::span<const std::uint64_t> waiting_bits(SequenceId sequence, int layer, int head) const;
  /// For those who read pages where they wait.
  WaitingPages waiting() const;
  /// The slot of a page's copy in the tier, or -1.
  std::int32_t waiting_slot(SequenceId sequence, const HeadPage& page) const;
  /// Sends the sequence's pages to the tier, whatever its heads freed and how full its pages are: those that nobody
  /// else reads, which the pool has again then, and with `shared` all others (it has own ones of them afterwards).
  /// Until bring_back nothing but this, destroy and what only counts may be called for it. Not while a mark is held.
  /// Throws UserError and changes nothing when the tier has no room.
  void put_away(SequenceId sequence, bool shared);
  /// Every token is as before put_away. Throws CacheFull.
  void bring_back(SequenceId sequence);
  std::int64_t pages_away(SequenceId sequence) const;

  /// The bytes of one plane of a page (its number in the head's table), wherever they are: in place where the host can
  /// read there, else copied to `space`, which grows to a page. Valid until the cache or `space` changes.
  const std::byte* read_page(SequenceId sequence, const HeadPage& page, Plane plane,
                             std::vector<std::byte>& space) const;
  /// Writes whole pages of one plane from `first` on, all resident.
  void write_pages(SequenceId sequence, const HeadPage& first, Plane plane, std::span<const std::byte> bytes);

  /// Marks nest. restore undoes every extend and free_tokens since the mark and ends it; commit keeps them and ends it.
  Mark mark(SequenceId sequence);
  void restore(const Mark& mark);
  void commit(const Mark& mark);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace glimpse::kv
