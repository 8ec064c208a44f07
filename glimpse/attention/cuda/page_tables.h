// The page tables of sequences in the memory of a device, for kernels to follow. kv::Cache has the tables; this is a
// copy, brought up to date before each pass: of a sequence that only grows, the few pages at its end, and those that
// went to the tier or came back.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/kernels/cuda/layers.h"
#include "glimpse/kv/cache.h"

namespace glimpse::attention::cuda {

/// Owned by a runner; borrows cache and stream. One thread at a time.
class PageTables {
 public:
  PageTables(const kv::Cache& cache, kernels::cuda::Stream& stream);

  /// Begins a pass. What the pass before it did not write is made up for.
  void begin();
  /// Then, for each of the pass's sequences, which have their slots: adds to writes() what must change on the device.
  /// Rows before the pass's own may have moved in heads that free pages.
  void follow(const SequenceRows& rows);
  /// Pages of a followed sequence that went to the tier, or came back, since.
  void moved(kv::SequenceId sequence, std::span<const kv::HeadPage> pages);
  /// The views of all heads of a sequence that was followed, as the device sees them: [layers, kv_heads], valid until
  /// it is followed again. Positions are there where single slots may be freed.
  std::span<const kernels::HeadView> views(const SequenceRows& rows) const { return tables_.at(rows.sequence).views; }

  /// What is to be written before the pass's kernels run, and that it was.
  const std::vector<kernels::cuda::Write>& writes() const { return writes_; }
  void written() { written_ = true; }

 private:
  struct Table {
    std::uint64_t serial = 0, layout = 0;  ///< the cache's, of the last pass
    std::int64_t length = 0;               ///< likewise
    std::size_t pages = 0;                 ///< room of each head
    std::vector<kernels::PageId> known;    ///< [layers, kv_heads, pages] what the device has
    std::vector<kv::HeadPage> moved;       ///< to be looked at in the next pass
    std::vector<kernels::HeadView> views;  ///< [layers, kv_heads] the cache's, then the device's
    kernels::cuda::Array<kernels::PageId> device;
    // Of heads that forget single tokens: which slots are freed. Empty where the program has none.
    std::vector<std::int32_t> known_positions;  ///< [layers, kv_heads, pages * kPageTokens]
    kernels::cuda::Array<std::int32_t> positions;
  };
  /// Room for so many pages of each head, and their positions; what was known is forgotten when it moves.
  bool make_room(Table& table, std::size_t pages, bool positions);

  /// What the device is told of a page: its number, or where it waits.
  kernels::PageId page_of(kv::SequenceId sequence, const kernels::HeadView& view, const kv::HeadPage& page) const;
  /// Of a head's positions, which lie at `at` in the table's, what is new; `whole`: all of them.
  void follow_positions(Table& table, std::size_t at, const kernels::HeadView& view, bool whole);
  /// One more write for the sequence that is followed, unless it has so many that its tables are sent whole.
  void write(std::uint32_t* to, std::uint32_t value);

  const kv::Cache& cache_;
  kernels::cuda::Stream& stream_;
  std::map<kv::SequenceId, Table>
      tables_;  ///< of ids that were followed; an id that is used again is seen by its serial
  std::vector<kernels::cuda::Write> writes_;
  std::size_t before_ = 0;  ///< writes of the sequences before
  bool written_ = true;
};

}  // namespace glimpse::attention::cuda
