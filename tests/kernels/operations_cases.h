// The cases that every implementation of kernels/ops.h runs, and the host memory of one: a layer of a cache whose pages
// lie in random order, rows, queries, reads, choices. What nobody may read is NaN.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "glimpse/kernels/ops.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::kernels::test {

struct OperationsCase {
  std::string name;
  int dim = 64;
  int kv_heads = 2;
  int group = 3;
  std::vector<std::int32_t> lengths = {300};  ///< slots of each sequence
  std::vector<std::int32_t> behind = {1};     ///< rows of each sequence
  double freed = 0;                           ///< share of freed slots
  int run = 1;                                ///< pages that lie together
};

inline const std::vector<OperationsCase>& operations_cases() {
  static const std::vector<OperationsCase> table{
      {.name = "one sequence"},
      {.name = "dim 128, group 4", .dim = 128, .kv_heads = 3, .group = 4, .lengths = {700}},
      {.name = "one query", .group = 1, .lengths = {33}},
      {.name = "group 7", .dim = 128, .group = 7, .lengths = {129, 16, 17}},
      {.name = "group 8", .dim = 128, .kv_heads = 1, .group = 8, .lengths = {2100}, .run = 16},
      {.name = "group 16", .dim = 128, .kv_heads = 1, .group = 16, .lengths = {515}},
      {.name = "group 17", .kv_heads = 1, .group = 17, .lengths = {100}},
      {.name = "ragged batch", .group = 4, .lengths = {1, 15, 16, 17, 511, 512, 513, 1025}},
      {.name = "several rows", .lengths = {600, 40}, .behind = {5, 4, 3, 2, 1}},
      {.name = "one token", .lengths = {1}},
      {.name = "some freed", .lengths = {400, 77}, .freed = 0.3},
      {.name = "all freed", .lengths = {64}, .freed = 1},
  };
  return table;
}

/// Prompts: one sequence, whose last `rows` are the pass's.
inline OperationsCase prompt_case(int dim, int group, std::int32_t length, std::int32_t rows) {
  OperationsCase made{.name = "dim " + std::to_string(dim) + ", group " + std::to_string(group) + ", " +
                              std::to_string(rows) + " of " + std::to_string(length),
                      .dim = dim,
                      .group = group,
                      .lengths = {length},
                      .behind = {}};
  for (std::int32_t back = rows; back > 0; --back) made.behind.push_back(back);
  return made;
}
inline std::vector<OperationsCase> prompt_cases() {
  std::vector<OperationsCase> all;
  for (const int dim : {64, 96, 128, 256}) {
    for (const int group : {1, 3, 4, 7, 16, 17}) {
      all.push_back(prompt_case(dim, group, 1, 1));
      all.push_back(prompt_case(dim, group, 64, 64));
      all.push_back(prompt_case(dim, group, 300, 50));
    }
  }
  all.push_back(prompt_case(64, 3, 700, 513));
  all.push_back(prompt_case(128, 4, 2000, 130));
  for (OperationsCase made : {prompt_case(64, 3, 400, 70), prompt_case(128, 4, 333, 33)}) {
    made.name += ", some freed";
    made.freed = 0.3;
    all.push_back(made);
  }
  OperationsCase corrected = prompt_case(64, 3, 500, 90);
  corrected.name += ", rows behind them";
  for (std::int32_t& back : corrected.behind) back += 120;
  all.push_back(corrected);
  return all;
}

/// Rows of several sequences, not as many of each (sequence_pieces_of).
inline std::vector<OperationsCase> piece_cases() {
  std::vector<OperationsCase> all;
  for (const int dim : {64, 96, 128}) {
    for (const int group : {1, 4, 8}) {
      for (const double freed : {0.0, 0.3}) {
        OperationsCase made{.name = "dim " + std::to_string(dim) + ", group " + std::to_string(group),
                            .dim = dim,
                            .group = group,
                            .lengths = {3000, 40, 1111, 9, 5000},
                            .freed = freed};
        made.behind.clear();
        for (std::int32_t back = 21; back > 0; --back) made.behind.push_back(back);
        if (freed > 0) made.name += ", some freed";
        all.push_back(made);
      }
    }
  }
  return all;
}

class OperationsBed {
 public:
  OperationsBed(const OperationsCase& which, KvType type, std::uint64_t seed) : of(which), format{type, which.dim} {
    random_.seed(seed);
    lay_pages();
    for (std::size_t s = 0; s < of.lengths.size(); ++s) {
      for (const std::int32_t back : of.behind) {
        if (back > of.lengths[s]) continue;
        sequence.push_back(static_cast<std::int32_t>(s));
        behind.push_back(back);
      }
    }
    const std::size_t heads = rows() * static_cast<std::size_t>(of.kv_heads);
    const std::size_t queries = heads * static_cast<std::size_t>(of.group);
    fill(q, queries * dim());
    fill(k, heads * dim());
    fill(v, heads * dim());
    stride = static_cast<std::size_t>(*std::max_element(of.lengths.begin(), of.lengths.end())) + 3;
    for (std::size_t i = 0; i < heads; ++i) {
      const auto kv = static_cast<std::size_t>(of.kv_heads);
      row_heads.push_back({static_cast<std::int32_t>(i / kv), static_cast<std::int32_t>(i % kv)});
    }
  }

  std::size_t rows() const { return sequence.size(); }
  std::size_t dim() const { return static_cast<std::size_t>(of.dim); }
  std::size_t queries() const { return q.size() / dim(); }
  KvTable<Place::host> cache() const {
    return {format, views.data(), static_cast<int>(of.lengths.size()), of.kv_heads};
  }
  RowTable<Place::host> row_table() const { return {sequence.data(), behind.data(), static_cast<int>(rows())}; }
  /// Slots that a row sees.
  std::int32_t seen(std::size_t row) const {
    return of.lengths[static_cast<std::size_t>(sequence[row])] - behind[row] + 1;
  }
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  void fill(std::vector<float>& values, std::size_t count) {
    std::normal_distribution<float> normal;
    values.resize(count);
    for (float& x : values) x = normal(random_);
  }
  /// A random ascending list of about a third of the slots, in the set of that number.
  void make_set(std::size_t number, std::int32_t slots) {
    std::int32_t count = 0;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      if (below(3) == 0)
        set_slots[number * static_cast<std::size_t>(capacity) + static_cast<std::size_t>(count++)] = slot;
    }
    set_count[number] = below(8) == 0 ? kEverything : count;
  }

  OperationsCase of;
  KvFormat format;
  std::vector<std::byte> k_plane, v_plane;
  std::vector<PageId> pages;            ///< of all views
  std::vector<std::int32_t> positions;  ///< of all views, or none
  std::vector<HeadView> views;          ///< [sequence, kv_head]
  std::vector<std::int32_t> sequence, behind;
  std::vector<float> q, k, v;
  std::size_t stride = 0;
  std::vector<RowHead> row_heads;  ///< all of them
  std::vector<std::int32_t> set_slots, set_count;
  std::int32_t capacity = 0;

 private:
  void lay_pages() {
    const auto run = static_cast<std::size_t>(of.run);
    std::size_t runs = 0;
    const auto runs_of = [&](std::int32_t length) {
      return (static_cast<std::size_t>(length) + kPageTokens * run - 1) / (kPageTokens * run);
    };
    for (const std::int32_t length : of.lengths) runs += runs_of(length) * static_cast<std::size_t>(of.kv_heads);
    std::vector<PageId> order(runs + 2);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random_);
    k_plane.assign(order.size() * run * format.page_bytes(), std::byte{0xff});
    v_plane = k_plane;
    std::vector<std::size_t> first;
    std::size_t used = 0;
    for (const std::int32_t length : of.lengths) {
      for (int head = 0; head < of.kv_heads; ++head) {
        first.push_back(pages.size());
        for (std::size_t i = 0; i < runs_of(length) * run; ++i) {
          pages.push_back(order[used + i / run] * static_cast<PageId>(run) + static_cast<PageId>(i % run));
        }
        used += runs_of(length);
      }
    }
    std::size_t slots = 0;
    for (const std::int32_t length : of.lengths) slots += static_cast<std::size_t>(length * of.kv_heads);
    if (of.freed > 0) positions.resize(slots);
    std::size_t at = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const std::int32_t length = of.lengths[i / static_cast<std::size_t>(of.kv_heads)];
      HeadView view{k_plane.data(), v_plane.data(), pages.data() + first[i], nullptr, length};
      store(view);
      if (of.freed > 0) {
        free_some(view, positions.data() + at);
        view.positions = positions.data() + at;
        at += static_cast<std::size_t>(length);
      }
      views.push_back(view);
    }
  }
  void store(const HeadView& view) {
    std::vector<float> keys, values;
    fill(keys, static_cast<std::size_t>(view.slots) * dim());
    fill(values, static_cast<std::size_t>(view.slots) * dim());
    ref::append(
        format,
        {.head = &view, .k = keys.data(), .v = values.data(), .row_stride = dim(), .slot = 0, .rows = view.slots});
  }
  void free_some(const HeadView& view, std::int32_t* where) {
    std::uniform_real_distribution<double> uniform;
    for (std::int32_t slot = 0; slot < view.slots; ++slot) {
      where[slot] = uniform(random_) < of.freed ? -1 : slot;
      if (where[slot] >= 0) continue;
      std::memset(view.row_of(view.k_plane, slot, format), 0xff, format.row_bytes());
      std::memset(view.row_of(view.v_plane, slot, format), 0xff, format.row_bytes());
    }
  }

  std::mt19937_64 random_;
};

/// Of sequence 0 all of the pass's rows, of each further one two fewer at their beginning; of the third none.
inline std::vector<PromptRows> sequence_pieces_of(const OperationsBed& bed) {
  std::vector<PromptRows> pieces;
  for (std::size_t row = 0; row < bed.rows();) {
    const std::int32_t sequence = bed.sequence[row];
    std::size_t end = row;
    while (end < bed.rows() && bed.sequence[end] == sequence) ++end;
    const std::size_t first = std::min(row + 2 * static_cast<std::size_t>(sequence), end);
    if (first < end && sequence != 2) {
      pieces.push_back(
          {sequence, static_cast<std::int32_t>(first), static_cast<std::int32_t>(end - first), bed.behind[first]});
    }
    row = end;
  }
  return pieces;
}

/// Reads of every kind, mixed over the heads; sets as they need. `per_query`: room for a set of each query head.
inline std::vector<Read> mixed_reads(OperationsBed& bed) {
  const std::size_t heads = bed.rows() * static_cast<std::size_t>(bed.of.kv_heads);
  const auto group = static_cast<std::size_t>(bed.of.group);
  bed.capacity = static_cast<std::int32_t>(bed.stride);
  bed.set_slots.assign(heads * group * bed.stride, -1);
  bed.set_count.assign(heads * group, 0);
  std::vector<Read> reads(heads);
  for (std::size_t i = 0; i < heads; ++i) {
    const std::int32_t slots = bed.seen(i / static_cast<std::size_t>(bed.of.kv_heads));
    for (std::size_t j = 0; j < group; ++j) bed.make_set(i * group + j, slots);
    Read& read = reads[i];
    read.kind = static_cast<Read::Kind>(i < 8 ? (i + 1) % 4 : static_cast<std::size_t>(bed.below(4)));
    read.set = static_cast<std::int32_t>(i * group);
    read.per_query = i % 2 == 0 ? 0 : 1;
    read.sink = bed.below(20);
    read.local = 1 + bed.below(100);
    if (read.kind == Read::Kind::window && read.sink > slots) read.sink = slots;
    if (read.kind == Read::Kind::everything) read.scores = i < 8 ? i == 0 : bed.below(2);
    if (read.kind == Read::Kind::sets && read.per_query == 0) read.scores = i < 8 ? 1 : bed.below(2);
  }
  return reads;
}

/// What operations of the host make of a case, NaN where nothing was written.
struct Scored {
  std::vector<float> scores, lse;
};
inline Scored score_on_host(Operations<Place::host>& operations, const OperationsBed& bed) {
  constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
  Scored made{std::vector<float>(bed.queries() * bed.stride, kUnwritten),
              std::vector<float>(bed.queries(), kUnwritten)};
  operations.score({bed.cache(),
                    bed.row_table(),
                    bed.q.data(),
                    bed.of.group,
                    0.125F,
                    bed.row_heads.data(),
                    static_cast<int>(bed.row_heads.size()),
                    {made.scores.data(), made.lse.data(), bed.stride}});
  return made;
}

struct Attended {
  std::vector<float> out, lse;
  std::vector<std::uint16_t> narrow;
  Scored left;  ///< by reads that leave scores

  /// Whether `narrow` is `out` as bf16.
  bool narrowed() const {
    return std::equal(out.begin(), out.end(), narrow.begin(), narrow.end(),
                      [](float x, std::uint16_t bits) { return bf16_from_float(x) == bits; });
  }
};
/// Of a set that leaves scores, what lies behind its places may be anything on the host.
inline void forget_behind_sets(const OperationsBed& bed, const std::vector<Read>& reads, Scored& left) {
  const auto group = static_cast<std::size_t>(bed.of.group);
  for (std::size_t i = 0; i < reads.size(); ++i) {
    if (reads[i].kind != Read::Kind::sets || reads[i].scores == 0) continue;
    const std::int32_t count = bed.set_count[static_cast<std::size_t>(reads[i].set)];
    if (count == kEverything) continue;
    for (std::size_t query = i * group; query < (i + 1) * group; ++query) {
      const auto row = left.scores.begin() + static_cast<std::ptrdiff_t>(query * bed.stride);
      std::fill(row + count, row + static_cast<std::ptrdiff_t>(bed.stride), std::numeric_limits<float>::quiet_NaN());
    }
  }
}
inline Attended attend_on_host(Operations<Place::host>& operations, OperationsBed& bed,
                               const std::vector<Read>& reads) {
  constexpr float kUnwritten = std::numeric_limits<float>::quiet_NaN();
  Attended made{
      std::vector<float>(bed.q.size(), kUnwritten),
      std::vector<float>(bed.queries(), kUnwritten),
      std::vector<std::uint16_t>(bed.q.size()),
      {std::vector<float>(bed.queries() * bed.stride, kUnwritten), std::vector<float>(bed.queries(), kUnwritten)}};
  operations.attend({bed.cache(),
                     bed.row_table(),
                     bed.q.data(),
                     bed.of.group,
                     0.125F,
                     reads.data(),
                     {bed.set_slots.data(), bed.set_count.data(), bed.capacity, static_cast<int>(bed.set_count.size())},
                     made.out.data(),
                     made.lse.data(),
                     made.narrow.data(),
                     {made.left.scores.data(), made.left.lse.data(), bed.stride}});
  forget_behind_sets(bed, reads, made.left);
  return made;
}

/// A prompt's case whose queries lose nothing in 16 bits: kernels of prompts multiply those.
inline OperationsBed prompt_bed(const OperationsCase& of, KvType type, std::uint64_t seed) {
  OperationsBed bed(of, type, seed);
  for (float& x : bed.q) x = float_from_bf16(bf16_from_float(x));
  return bed;
}
inline PromptRows prompt_of(const OperationsBed& bed) {
  return {.sequence = 0, .row = 0, .rows = static_cast<std::int32_t>(bed.rows()), .behind = bed.behind.front()};
}
inline std::vector<float> prefill_on_host(Operations<Place::host>& operations, const OperationsBed& bed) {
  std::vector<float> out(bed.q.size(), std::numeric_limits<float>::quiet_NaN());
  operations.prefill({bed.cache(), prompt_of(bed), bed.q.data(), bed.of.group, 0.125F, out.data()});
  return out;
}

/// Log-sum-exps of a prompt's rows, NaN where nothing was written.
inline std::vector<float> prompt_lse_on_host(Operations<Place::host>& operations, const OperationsBed& bed) {
  std::vector<float> out(bed.q.size()), lse(bed.queries(), std::numeric_limits<float>::quiet_NaN());
  operations.prefill({bed.cache(), prompt_of(bed), bed.q.data(), bed.of.group, 0.125F, out.data(), lse.data()});
  return lse;
}
/// The same of pieces; 0 where nothing was written.
inline std::vector<float> prefill_pieces_on_host(Operations<Place::host>& operations, const OperationsBed& bed) {
  const std::vector<PromptRows> pieces = sequence_pieces_of(bed);
  std::vector<float> out(bed.q.size()), lse(bed.queries());
  operations.prefill({bed.cache(),
                      {0, 0, static_cast<std::int32_t>(bed.of.behind.size())},
                      bed.q.data(),
                      bed.of.group,
                      0.125F,
                      out.data(),
                      lse.data(),
                      pieces.data(),
                      static_cast<int>(pieces.size())});
  out.insert(out.end(), lse.begin(), lse.end());
  return out;
}
/// All rows of a prompt, its second half, and its last row.
inline std::vector<PromptRows> pieces_of(const OperationsBed& bed) {
  std::vector<PromptRows> pieces;
  const PromptRows all = prompt_of(bed);
  for (const std::int32_t skipped : {0, all.rows / 2, all.rows - 1}) {
    pieces.push_back({all.sequence, all.row + skipped, all.rows - skipped, all.behind - skipped});
  }
  return pieces;
}
inline std::vector<float> column_sums_on_host(Operations<Place::host>& operations, const OperationsBed& bed,
                                              std::vector<float>& lse) {
  const std::vector<PromptRows> pieces = pieces_of(bed);
  std::vector<float> sums(pieces.size() * static_cast<std::size_t>(bed.of.kv_heads) * bed.stride,
                          std::numeric_limits<float>::quiet_NaN());
  operations.column_sums({bed.cache(), pieces.data(), static_cast<int>(pieces.size()), bed.q.data(), lse.data(),
                          bed.of.group, 0.125F, bed.stride, sums.data()});
  return sums;
}

/// What a bed's operations make of pages: the bounds of all full ones, 0xff where nothing was written.
inline std::vector<PageRange> page_ranges(const OperationsBed& bed) {
  std::vector<PageRange> ranges;
  for (std::size_t s = 0; s < bed.of.lengths.size(); ++s) {
    for (int head = 0; head < bed.of.kv_heads; ++head) {
      const std::int32_t pages = bed.of.lengths[s] / kPageTokens;
      // In two pieces, and an empty one.
      ranges.push_back({static_cast<std::int32_t>(s), head, 0, pages / 3});
      ranges.push_back({static_cast<std::int32_t>(s), head, pages / 3, pages});
      ranges.push_back({static_cast<std::int32_t>(s), head, pages, pages});
    }
  }
  return ranges;
}
inline std::int32_t most_pages(const OperationsBed& bed) {
  return *std::max_element(bed.of.lengths.begin(), bed.of.lengths.end()) / kPageTokens;
}
inline std::vector<std::byte> no_bounds(const OperationsBed& bed) {
  return std::vector<std::byte>(bed.k_plane.size() / bed.format.page_bytes() * summary_bytes(bed.format),
                                std::byte{0xff});
}
inline std::vector<std::byte> summarise_on_host(Operations<Place::host>& operations, const OperationsBed& bed) {
  const std::vector<PageRange> ranges = page_ranges(bed);
  std::vector<std::byte> bounds = no_bounds(bed);
  operations.summarise({bed.cache(),
                        ranges.data(),
                        static_cast<int>(ranges.size()),
                        most_pages(bed),
                        {bounds.data(), summary_type(bed.format.type)}});
  return bounds;
}

/// A search for each row and head, over most of the blocks that lie whole before the row.
inline std::vector<Search> all_searches(const OperationsBed& bed) {
  std::vector<Search> searches;
  for (std::size_t i = 0; i < bed.row_heads.size(); ++i) {
    const RowHead at = bed.row_heads[i];
    const auto pages = static_cast<std::int32_t>(1 + i % 3);
    const std::int32_t blocks = bed.seen(static_cast<std::size_t>(at.row)) / (pages * kPageTokens);
    searches.push_back({at.row, at.head, pages, blocks / 5, blocks});
  }
  return searches;
}
inline std::vector<float> search_on_host(Operations<Place::host>& operations, const OperationsBed& bed,
                                         std::vector<std::byte>& bounds) {
  const std::vector<Search> searches = all_searches(bed);
  std::vector<float> scores(bed.queries() * bed.stride, std::numeric_limits<float>::quiet_NaN());
  operations.search({bed.cache(),
                     bed.row_table(),
                     bed.q.data(),
                     bed.of.group,
                     0.125F,
                     {bounds.data(), summary_type(bed.format.type)},
                     searches.data(),
                     static_cast<int>(searches.size()),
                     most_pages(bed),
                     {scores.data(), nullptr, bed.stride}});
  return scores;
}

/// Choices of every pooling and rule for one row each; `set` counts up from 0.
inline std::vector<Choice> all_choices(const OperationsBed& bed) {
  std::vector<Choice> choices;
  for (std::size_t row = 0; row < bed.rows(); ++row) {
    for (const Pooling pooling : {Pooling::mean_probability, Pooling::max_probability, Pooling::mean_score,
                                  Pooling::max_score, Pooling::probability_of_mean}) {
      for (const int block : {1, 16, -16}) {  // below 0: of units that have scores themselves
        for (const ChoiceRule rule : {ChoiceRule::count, ChoiceRule::mass, ChoiceRule::threshold}) {
          const bool probability = pooling == Pooling::mean_probability || pooling == Pooling::max_probability ||
                                   pooling == Pooling::probability_of_mean;
          if (rule != ChoiceRule::count && !probability) continue;
          if (block < 0 && probability) continue;
          Choice choice;
          choice.row = static_cast<std::int32_t>(row);
          choice.head = static_cast<std::int32_t>(choices.size()) % bed.of.kv_heads;
          choice.heads = choices.size() % 3 == 0 ? bed.of.kv_heads - choice.head : 1;
          choice.query = choices.size() % 5 == 4 ? bed.of.group - 1 : -1;
          choice.set = static_cast<std::int32_t>(choices.size());
          choice.pooling = pooling;
          choice.across = static_cast<Across>(choices.size() % 7 % 3);
          choice.rule = rule;
          choice.block = std::abs(block);
          choice.by_unit = block < 0 ? 1 : 0;
          const std::int32_t units = (bed.seen(row) + choice.block - 1) / choice.block;
          choice.head_units = std::min(units - 1, 1);
          choice.tail_units = std::max(choice.head_units, units - 2);
          choice.tail_counts = static_cast<std::int32_t>(choices.size() % 2);
          choice.wanted = units / 3;
          choice.value = rule == ChoiceRule::mass ? 0.6 : 1.0 / bed.seen(row);
          choices.push_back(choice);
        }
      }
    }
  }
  return choices;
}

}  // namespace glimpse::kernels::test
