// What a pass does on a device, worked out on the host before it: which rows take which kernels, what each head reads,
// which sets are made from which scores. The host knows all of it but the counts of sets, which stay on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/attention/batch.h"
#include "glimpse/attention/cuda/program_facts.h"
#include "glimpse/kernels/cuda/made_rows.h"
#include "glimpse/kernels/cuda/mean_tokens.h"
#include "glimpse/kernels/cuda/parts.h"
#include "glimpse/kernels/cuda/trees.h"
#include "glimpse/kernels/cuda/units.h"
#include "glimpse/kernels/ops.h"

namespace glimpse::attention::cuda {

/// Lengths in steps of an eighth of a power of two: launches are sized by it, and a graph of them holds for a while.
std::int64_t length_step(std::int64_t tokens);

/// A sequence's rows in a pass.
struct PassEntry {
  SequenceRows rows;
  std::int64_t tokens = 0;  ///< after the pass's rows
  bool dense = true;        ///< reads everything, and selects nothing
  int first_set = 0;        ///< its sets are numbered from here
  const ProgramFacts* facts = nullptr;
  int first_heat = -1;  ///< its rows of heat and of what flows back into it are numbered from here; -1: none
  int heats = 0;        ///< so many: one, or one for each layer
  int first_kept = -1;  ///< [layers] what its layers' unions took is numbered from here; -1: nobody asks
  bool waits = false;   ///< pages of its sets may wait in the tier
  const std::int32_t* covered = nullptr;  ///< [layers, kv_heads] tokens that trees cover, where it searches some
  int first_made = -1;  ///< lists of rows that are put together (MadeSet) are numbered from here; -1: none
  int made_lists = 0;   ///< so many for each KV head
  std::int64_t first_made_row = 0, made_of_head = 0;  ///< where they lie: [kv_heads, made_of_head]
  std::int64_t observed = 0;  ///< of its prompt's rows, those from this one on flow back into the heat

  int heat_of(int layer) const { return first_heat + (heats > 1 ? layer : 0); }
};

/// Consecutive rows that one operation takes: each reads for itself.
struct RowGroup {
  int row = 0, rows = 0;        ///< in the pass
  std::size_t first_entry = 0;  ///< entries [first_entry, first_entry + entries)
  std::size_t entries = 0;
};

/// True when a set is made by a search of a head's tree.
bool searches_tree(const SelectOp& select);

/// What a layer does for a group.
struct GroupLayer {
  std::vector<kernels::RowHead> scores;          ///< rows counted from the group's first
  std::vector<kernels::Search> searches;         ///< likewise
  std::vector<kernels::Choice> choices;          ///< likewise
  std::vector<kernels::cuda::Union> unions;      ///< likewise
  std::vector<std::int32_t> union_queries;       ///< query heads whose choices they join
  std::vector<kernels::cuda::RankMerge> ranks;   ///< likewise
  std::vector<kernels::Choice> united;           ///< likewise: by what unions and merges make of the units
  std::vector<kernels::cuda::TreeSearch> trees;  ///< likewise; which trees, the caller says
  std::vector<kernels::cuda::UnitSearch> units;  ///< likewise
  std::vector<kernels::cuda::GateQuery> gates;   ///< likewise: queries that searches of units count; whose, the caller
  std::vector<kernels::cuda::MadeSet> made;      ///< likewise; whose factors, the caller says
  std::vector<kernels::cuda::MeanToken> means;   ///< likewise, added by MeanTokens
  std::vector<kernels::cuda::HeatRow> heats;     ///< likewise: heads whose probabilities flow back
  std::vector<kernels::RowHead> audits;          ///< likewise: heads whose keys are scored once more, behind all else
  std::vector<kernels::Read> reads;              ///< [rows, kv_heads]
  std::vector<kernels::Read> cached_reads;       ///< the same where nothing is put together; empty: nothing is
  /// Attention leaves the scores that sets are made from, and they are made behind it: nobody reads them before, and
  /// all heads that are scored read everything. Then `scores` is empty.
  bool late = false;
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

/// True where the rows of a head's set are put together: keys are made, or pages wait.
bool makes_rows(const PassEntry& entry, int layer, int head);
/// True where a head's keys of the prompt are made from factors: those of positions below made_end(), but for outliers.
bool makes_keys(const PassEntry& entry, int layer, int head);
std::int64_t made_end(const PassEntry& entry, int layer, int head);
/// Blocks that a search of this selector scores for an entry; 0: the budget takes all of them, or none.
std::int64_t searched_blocks(const PassEntry& entry, const plan::Selector& selector);
/// Tokens that a search of a tree takes, at most, and units that a search of them scores.
std::int64_t searched_tokens(const PassEntry& entry, const SelectOp& select);
std::int64_t searched_units(const PassEntry& entry, const SelectOp& select);
/// The first of the sets that an entry's slot has.
int first_set(const PassEntry& entry, plan::SlotId slot);

/// Host data of a pass; vectors are kept between passes.
class PassTables {
 public:
  /// Rows up to this many of one sequence that read everything go with those that decode; more are a prompt's.
  static constexpr int kFewRows = 8;

  /// `lengths`: [batch] tokens of each sequence, more than its rows reach where they are corrected. `waits`: [batch]
  /// its sets are read where pages wait. `covered`: [batch] PassEntry::covered, valid as long as the entries.
  /// `facts`: [batch] likewise.
  void make(std::span<const SequenceRows> batch, std::span<const std::int64_t> lengths, std::span<const char> waits,
            std::span<const std::int32_t* const> covered, std::span<const ProgramFacts* const> facts);

  std::span<const PassEntry> entries() const { return entries_; }
  std::span<const RowGroup> groups() const { return groups_; }
  std::span<const kernels::PromptRows> prompts() const { return prompts_; }       ///< `sequence` counts entries
  const std::vector<std::int32_t>& sequence_of_row() const { return sequence_; }  ///< [rows]
  const std::vector<std::int32_t>& behind() const { return behind_; }             ///< [rows]
  int rows() const { return static_cast<int>(sequence_.size()); }
  const PassSizes& sizes() const { return sizes_; }
  /// What `layer` does for a group.
  void layer_of(const RowGroup& group, int layer, GroupLayer& to) const;

 private:
  void number_sets(PassEntry& entry);
  void size_selects(const PassEntry& entry);
  void number_heat(PassEntry& entry);
  void place_made();

  std::vector<PassEntry> entries_;
  std::vector<RowGroup> groups_;
  std::vector<kernels::PromptRows> prompts_;
  std::vector<std::int32_t> sequence_, behind_;
  PassSizes sizes_;
};

}  // namespace glimpse::attention::cuda
