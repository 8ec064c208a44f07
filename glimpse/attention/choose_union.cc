// Sets that several terms or heads put together: EvoSparse's union of propagated blocks and heat, LessIsMore's merge
// by rank.
#include <algorithm>
#include <limits>

#include "glimpse/attention/choose.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::attention {
namespace {

constexpr std::size_t kFirstRanks = 128;  ///< nine heads at a budget of 512: 471 us a layer, 655 with 512
constexpr float kNever = -std::numeric_limits<float>::infinity();

bool better(const ScoredUnit& a, const ScoredUnit& b) {
  return a.score > b.score || (a.score == b.score && a.unit < b.unit);
}

/// Keeps the best of equal units, in order of score.
void keep_best(std::vector<ScoredUnit>& units) {
  std::sort(units.begin(), units.end(), [](const ScoredUnit& a, const ScoredUnit& b) {
    return a.unit < b.unit || (a.unit == b.unit && a.score > b.score);
  });
  units.erase(std::unique(units.begin(), units.end(),
                          [](const ScoredUnit& a, const ScoredUnit& b) { return a.unit == b.unit; }),
              units.end());
  std::sort(units.begin(), units.end(), better);
}

/// The k best units of one query head, best first, appended to `out`.
void best_of(std::span<const float> scores, std::size_t k, SelectionScratch& scratch, std::vector<ScoredUnit>& out) {
  const std::size_t count = kernels::select_top_k(scores, k, scratch.chosen, scratch.workspace);
  const std::size_t first = out.size();
  for (std::size_t i = 0; i < count; ++i) {
    out.push_back({scratch.chosen[i], scores[static_cast<std::size_t>(scratch.chosen[i])]});
  }
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), better);
}

/// Units and what is in the set already.
class UnitSet {
 public:
  UnitSet(const plan::Selector& selector, std::size_t tokens, SelectionScratch& scratch)
      : tokens_(tokens),
        block_(static_cast<std::size_t>(selector.block)),
        units_((tokens + block_ - 1) / block_),
        taken_(scratch.taken) {
    taken_.assign(units_, 0);
    const Always always = always_units(selector, tokens);
    open_ = {always.head, always.tail};
    const auto k = static_cast<std::size_t>(plan::budget_tokens(selector.budget, static_cast<std::int64_t>(tokens)));
    const std::size_t forced = always.head + (selector.counts_local ? units_ - always.tail : 0);
    room_ = k / block_ > forced ? k / block_ - forced : 0;
    std::fill_n(taken_.begin(), always.head, 1);
    std::fill(taken_.begin() + static_cast<std::ptrdiff_t>(always.tail), taken_.end(), 1);
  }

  std::size_t count() const { return units_; }
  std::size_t room() const { return room_; }
  /// The units between sink and window, which are not in the set from the start.
  const Always& open() const { return open_; }
  bool has(std::size_t unit) const { return taken_[unit] != 0; }
  /// False when it is in already, or nothing more fits.
  bool take(std::size_t unit) {
    if (room_ == 0 || taken_[unit]) return false;
    taken_[unit] = 1;
    --room_;
    return true;
  }
  void write(std::vector<std::int32_t>& set) const {
    set.clear();
    for (std::size_t unit = 0; unit < units_; ++unit) {
      if (!taken_[unit]) continue;
      const std::size_t end = std::min(tokens_, (unit + 1) * block_);
      for (std::size_t i = unit * block_; i < end; ++i) set.push_back(static_cast<std::int32_t>(i));
    }
  }

 private:
  std::size_t tokens_, block_, units_;
  std::size_t room_ = 0;
  Always open_;
  std::vector<char>& taken_;
};

/// Scores of units for one query head: its row, or the max over each block's tokens.
std::span<const float> unit_scores(const HeadScores& head, std::size_t query, const plan::Selector& selector,
                                   std::size_t tokens, SelectionScratch& scratch) {
  const std::span<const float> row(head.scores + query * head.stride, tokens);
  if (selector.block == 1) return row;
  const auto block = static_cast<std::size_t>(selector.block);
  const std::span<float> units(scratch.units.data(), (tokens + block - 1) / block);
  kernels::block_max(row, selector.block, units);
  return units;
}

}  // namespace

bool pools_queries(const plan::Term& term) {
  return term.group == plan::GroupPooling::mean_query || term.group == plan::GroupPooling::mean_score;
}

int scoring_queries(const plan::Term& term, int kv_head, int group) {
  if (term.source == plan::Source::heat) return 0;
  if (term.query_heads.empty()) return group;
  return static_cast<int>(std::count_if(term.query_heads.begin(), term.query_heads.end(),
                                        [&](int query_head) { return query_head / group == kv_head; }));
}

bool is_union(const plan::Selector& selector) {
  return selector.terms.size() > 1 || selector.terms.front().budget.has_value() ||
         selector.terms.front().source == plan::Source::heat;
}

void choose_by_rank(const plan::Selector& selector, std::span<const HeadScores> heads, std::size_t tokens,
                    SelectionScratch& scratch, std::vector<std::int32_t>& set) {
  UnitSet units(selector, tokens, scratch);
  // Several heads fill the set long before each has ranked as many units as there is room for, and sorting the ranks
  // is most of the work: heads are ranked as deep as the merge has got.
  const auto [first, last] = units.open();
  const std::size_t wanted = std::min(units.room(), last - first);
  auto& ranked = scratch.ranked;
  auto& starts = scratch.starts;
  std::size_t rank = 0;
  for (std::size_t depth = std::min(wanted, kFirstRanks); rank < wanted && units.room() > 0;
       depth = std::min(wanted, 2 * depth)) {
    ranked.clear();
    starts.clear();
    for (const HeadScores& head : heads) {
      for (int j = 0; j < head.group; ++j) {
        starts.push_back(ranked.size());
        const auto scores = unit_scores(head, static_cast<std::size_t>(j), selector, tokens, scratch);
        best_of(scores.subspan(first, last - first), depth, scratch, ranked);
      }
    }
    starts.push_back(ranked.size());
    for (; rank < depth && units.room() > 0; ++rank) {
      for (std::size_t list = 0; list + 1 < starts.size(); ++list) {
        const std::size_t at = starts[list] + rank;
        if (at < starts[list + 1]) units.take(first + static_cast<std::size_t>(ranked[at].unit));
      }
    }
  }
  units.write(set);
}

void choose_union(const plan::Selector& selector, const Candidates& from, SelectionScratch& scratch,
                  std::vector<std::int32_t>& set, std::vector<ScoredUnit>& chosen) {
  chosen.clear();
  UnitSet units(selector, from.tokens, scratch);
  const plan::Term& first = selector.terms.front();
  if (first.source != plan::Source::heat) {
    const std::int64_t each = plan::term_tokens(selector, first, static_cast<std::int64_t>(from.tokens));
    const std::size_t k = static_cast<std::size_t>(each) / static_cast<std::size_t>(selector.block);
    auto& most = scratch.most;  // over all of the heads, whichever chose the unit
    most.assign(units.count(), kNever);
    for (const HeadScores& head : from.heads) {
      for (int j = 0; j < head.group; ++j) {
        const auto scores = unit_scores(head, static_cast<std::size_t>(j), selector, from.tokens, scratch);
        for (std::size_t i = 0; i < scores.size(); ++i) most[i] = std::max(most[i], scores[i]);
        best_of(scores, k, scratch, chosen);
      }
    }
    for (ScoredUnit& unit : chosen) unit.score = most[static_cast<std::size_t>(unit.unit)];
    keep_best(chosen);
  }
  for (const ScoredUnit& unit : from.inherited) units.take(static_cast<std::size_t>(unit.unit));
  for (const ScoredUnit& unit : chosen) units.take(static_cast<std::size_t>(unit.unit));
  if (selector.terms.back().source == plan::Source::heat && units.room() > 0) {
    check(from.heat.size() >= units.count(), "heat covers the context");
    const std::span<float> open(scratch.units.data(), units.count());
    for (std::size_t i = 0; i < open.size(); ++i) open[i] = units.has(i) ? kNever : from.heat[i];
    const std::size_t count = kernels::select_top_k(open, units.room(), scratch.chosen, scratch.workspace);
    for (std::size_t i = 0; i < count; ++i) units.take(static_cast<std::size_t>(scratch.chosen[i]));
  }
  units.write(set);
}

}  // namespace glimpse::attention
