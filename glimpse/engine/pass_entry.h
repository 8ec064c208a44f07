// What one sequence has in a forward pass. A value; inside engine only.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/base/draw.h"
#include "glimpse/engine/active_sequence.h"

namespace glimpse::engine {

/// One sequence's rows in a pass. It borrows sequence, tokens and flag until the pass has ended.
struct PassEntry {
  ActiveSequence* sequence = nullptr;
  std::span<const Token> tokens;
  attention::PassKind kind = attention::PassKind::decode;
  bool audit = false;                       ///< where the kind decodes
  std::int64_t committed = 0;               ///< draft, verify: tokens before the first draft
  std::int64_t prompt_end = 0;              ///< prompt
  const std::atomic<bool>* stop = nullptr;  ///< a chunk that may end in its middle
  enum class Logits : std::uint8_t { none, last, all } logits = Logits::last;
  bool keeps_rows = false;  ///< logits_of() may be asked for its rows behind the pass
  int leaders = 0;          ///< so many of the largest logits of a row are enough; 0: all are read
  Draw draw;                ///< how its last row's token is drawn from them

  /// Rows of the logits that are its own.
  std::size_t logits_rows() const {
    if (logits == Logits::none) return 0;
    return logits == Logits::all ? tokens.size() : 1;
  }
  bool is_stopped() const { return stop != nullptr && stop->load(std::memory_order_relaxed); }
};

/// True for one that adds to SequenceState::decode_steps.
constexpr bool counts_a_step(const PassEntry& entry) {
  return entry.kind == attention::PassKind::decode || entry.kind == attention::PassKind::dense_decode;
}

/// The entry's rows in a batch: from row `first_row` of the pass and position `position` of its sequence on.
attention::SequenceRows rows_of(const PassEntry& entry, std::size_t first_row, std::int64_t position);
/// Adds those that have logits, of a batch whose rows end with the entry's at `end`.
void add_output_rows(const PassEntry& entry, std::size_t end, std::vector<std::int32_t>& outputs);

/// So many leaders of a row that every entry has enough of them; 0: some reads all logits.
int leaders_of(std::span<const PassEntry> entries);

/// True when rows of an entry that failed can be taken back and all that the sequence keeps is as before.
bool can_take_back(const PassEntry& entry);

}  // namespace glimpse::engine
