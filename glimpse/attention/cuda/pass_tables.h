// What a pass does on a device, worked out on the host before it: which rows take which kernels, what each head reads,
// which sets are made from which scores. The host knows all of it but the counts of sets, which stay on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cuda/layer_lists.h"
#include "glimpse/attention/cuda/pass_entry.h"
#include "glimpse/kernels/ops.h"

namespace glimpse::attention::cuda {

/// Consecutive rows that one operation takes: each reads for itself.
struct RowGroup {
  int row = 0, rows = 0;        ///< in the pass
  std::size_t first_entry = 0;  ///< entries [first_entry, first_entry + entries)
  std::size_t entries = 0;
};

/// How much a pass's entries ask of memory and launches.
struct PassSizes {
  int sets = 0;
  /// Slots that a set may hold: of every set of the pass, at the length below which all rows see.
  std::int32_t capacity = 0;
  /// Slots of a row of scores, or blocks where none scores slots: a bound of what rows see that seldom changes; 0 where
  /// nothing selects.
  std::size_t stride = 0;
  std::int32_t most_blocks = 0;  ///< of a search, at most; likewise
  /// Units of a row of heat, and of what a union makes: a bound that seldom changes; 0 where no entry has any.
  std::size_t heat_stride = 0;
  int heats = 0;  ///< rows of heat
  int kept = 0;   ///< rows of what unions took
  /// What the lists of a union hold together, at most, and the units that a head reads whose probabilities flow back.
  int most_candidates = 0, most_heated = 0;
  int most_ranks = 0, most_ranked = 0;   ///< ranks of a list that is merged by rank, and lists of such a merge, at most
  std::int64_t made_rows = 0;            ///< rows of K and V that the pass puts together for attention
  std::int32_t fresh = -1, longest = 0;  ///< as KvTable has them, of all views; `longest` seldom changes
};

/// Blocks that a search of this selector scores for an entry; 0: the budget takes all of them, or none.
std::int64_t searched_blocks(const PassEntry& entry, const plan::Selector& selector);

/// Host data of a pass; vectors are kept between passes.
class PassTables {
 public:
  /// Rows up to this many of one sequence that read everything go with those that decode; more are a prompt's.
  static constexpr int kFewRows = 8;
  /// A verification of fewer (row, token) pairs goes with those that decode, too.
  static constexpr std::int64_t kFewReads = 16384;

  /// `reads_once`: a prompt's rows read K and V once however few they are, so verifications go the same way.
  explicit PassTables(bool reads_once) : reads_once_(reads_once) {}

  /// `lengths`: [batch] tokens of each sequence, more than its rows reach where they are corrected. `waits`: [batch]
  /// its sets are read where pages wait. `trees`: [batch] PassEntry::trees, valid as long as the entries.
  /// `facts`: [batch] likewise.
  void make(std::span<const SequenceRows> batch, std::span<const std::int64_t> lengths, std::span<const char> waits,
            std::span<const SearchedTrees* const> trees, std::span<const ProgramFacts* const> facts);

  std::span<const PassEntry> entries() const { return entries_; }
  std::span<const RowGroup> groups() const { return groups_; }
  std::span<const kernels::PromptRows> prompts() const { return prompts_; }  ///< `sequence` counts entries
  /// Likewise: rows that go together in one launch, and read K and V once.
  const std::vector<kernels::PromptRows>& verified() const { return verified_; }
  const std::vector<std::int32_t>& sequence_of_row() const { return sequence_; }  ///< [rows]
  const std::vector<std::int32_t>& behind() const { return behind_; }             ///< [rows]
  int rows() const { return static_cast<int>(sequence_.size()); }
  const PassSizes& sizes() const { return sizes_; }
  /// What `layer` does for a group.
  void layer_of(const RowGroup& group, int layer, GroupLayer& to) const;

 private:
  bool is_verified(const PassEntry& entry) const;
  void number_sets(PassEntry& entry);
  void size_selects(const PassEntry& entry);
  void number_heat(PassEntry& entry);
  void place_made();

  bool reads_once_;
  std::vector<PassEntry> entries_;
  std::vector<RowGroup> groups_;
  std::vector<kernels::PromptRows> prompts_, verified_;
  std::vector<std::int32_t> sequence_, behind_;
  PassSizes sizes_;
};

}  // namespace glimpse::attention::cuda
