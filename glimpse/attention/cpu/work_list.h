// The work of one phase of one layer: items that any thread may compute, and the units whose partial results they
// are. Inside attention only. Filled by one thread, drained by all.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "glimpse/kernels/attention.h"

namespace glimpse::attention {

/// One output: g query heads of one KV head (or a single query head) of one decode row.
struct Unit {
  int batch = 0;
  int head = 0;
  int query_head = -1;  ///< in the group; -1: all g
  int group = 1;
  std::size_t first_partial = 0;  ///< floats into the partial results
  int partials = 0;
  const std::int32_t* list = nullptr;  ///< what its entries are: positions, or null: slots
  std::int32_t entries = 0;
  int key_rank = 0;  ///< keys of the prompt are made from so many singular vectors
  bool keeps_scores = false;
  std::size_t first_score = 0;  ///< floats into the scores, when kept: [group, State::score_stride]
  bool selects = false;         ///< choose and publish when combined
  bool feeds = false;           ///< probabilities flow back when combined
  int prompt_rows = 0;          ///< the entry's few rows, which share the read: `group` is theirs together; 0: decoding
};

struct Item {
  enum class Kind : std::uint8_t {
    attend,      ///< a part of a unit
    score,       ///< K alone, a part of a unit
    mean_token,  ///< what stands for dropped tokens: the unit's last partial result
    prefill,     ///< rows of a prompt
    range,       ///< few rows of a prompt over part of the keys: a part of a unit
    verify,      ///< few verified rows over part of the keys: parts of a unit
    choose,      ///< a layer's set that needs no scores
    search,      ///< a head's index
    grow,        ///< a head's index takes in the prompt or what was corrected
    factor,      ///< a layer's prompt keys become factors of low rank
    tile,        ///< a prompt tile's set for one head
    audit,       ///< what a head's set captures
  };
  Kind kind = Kind::attend;
  int unit = -1;  ///< attend, score, mean_token, range, verify
  int batch = 0, head = 0;
  std::int32_t begin = 0, end = 0;  ///< slots, list entries, rows of a prompt; range, verify: slots; tile: its number
  const std::int32_t* list = nullptr;
  int partial = 0;  ///< which partial result of the unit, or the first; prefill: number of the tile's item
};

class WorkList {
 public:
  void clear();
  int add_unit(const Unit& unit);
  void add(const Item& item) { items_.push_back(item); }
  /// Call when all is added: resets the counters that threads share.
  void seal();

  std::size_t unit_count() const { return units_.size(); }
  Unit& unit(int index) { return units_[static_cast<std::size_t>(index)]; }
  /// The next item for the calling thread, or null.
  const Item* take() {
    const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    return index < items_.size() ? &items_[index] : nullptr;
  }
  /// The same while so many are left that a thread may hold one ahead without leaving another idle; else null. Kernels
  /// fetch its first rows meanwhile.
  const Item* take_ahead(int threads) {
    const bool plenty = next_.load(std::memory_order_relaxed) + 2 * static_cast<std::size_t>(threads) < items_.size();
    return plenty ? take() : nullptr;
  }
  /// True for the thread that finished the unit's last partial result.
  bool finish(int unit, int parts) { return remaining_[unit].fetch_sub(parts, std::memory_order_acq_rel) == parts; }

 private:
  std::vector<Item> items_;
  std::vector<Unit> units_;
  std::unique_ptr<std::atomic<int>[]> remaining_;  ///< [unit_capacity_]
  std::size_t unit_capacity_ = 0;
  std::atomic<std::size_t> next_{0};
};

/// Splits `length` entries into items of kernels::kSplitTokens. At least one, so that an empty unit is still written.
inline int split_count(std::int64_t length) {
  return length <= 0 ? 1 : static_cast<int>((length + kernels::kSplitTokens - 1) / kernels::kSplitTokens);
}

}  // namespace glimpse::attention
