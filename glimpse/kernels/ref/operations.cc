#include "glimpse/kernels/ref/operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/kernels/ref/attention_ref.h"
#include "glimpse/kernels/ref/index_ref.h"
#include "glimpse/kernels/ref/rows.h"

namespace glimpse::kernels::ref {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

const HeadView& view_of(const KvTable<Place::host>& cache, const RowTable<Place::host>& rows, int row, int head) {
  const auto sequence = static_cast<std::size_t>(rows.sequence[static_cast<std::size_t>(row)]);
  return cache.views[sequence * static_cast<std::size_t>(cache.kv_heads) + static_cast<std::size_t>(head)];
}

/// The slots that a row sees in a KV head.
std::int32_t seen(const KvTable<Place::host>& cache, const RowTable<Place::host>& rows, int row, int head) {
  return view_of(cache, rows, row, head).slots - rows.behind[static_cast<std::size_t>(row)] + 1;
}

std::size_t query_head(const KvTable<Place::host>& cache, int group, const RowHead& at, int query) {
  return (static_cast<std::size_t>(at.row) * static_cast<std::size_t>(cache.kv_heads) +
          static_cast<std::size_t>(at.head)) *
             static_cast<std::size_t>(group) +
         static_cast<std::size_t>(query);
}

/// The stored rows of one KV head, each read once however many queries ask for it.
class HeadRows {
 public:
  HeadRows(const KvFormat& format, const HeadView& view)
      : format_(format),
        view_(view),
        keys_(static_cast<std::size_t>(view.slots)),
        values_(static_cast<std::size_t>(view.slots)) {}

  double score(const float* query, std::int32_t slot, float scale) {
    if (freed(view_, slot)) return kMinusInfinity;
    return dot(query, row(keys_, view_.k_plane, slot)) * static_cast<double>(scale);
  }
  const std::vector<double>& value(std::int32_t slot) { return row(values_, view_.v_plane, slot); }

 private:
  using Rows = std::vector<std::vector<double>>;
  const std::vector<double>& row(Rows& rows, std::byte* plane, std::int32_t slot) const {
    std::vector<double>& read = rows[static_cast<std::size_t>(slot)];
    if (read.empty()) read = read_row(format_, view_, plane, slot);
    return read;
  }

  const KvFormat& format_;
  const HeadView& view_;
  Rows keys_, values_;
};

/// Of all heads that an operation asks for.
class CacheRows {
 public:
  explicit CacheRows(const KvFormat& format) : format_(format) {}
  HeadRows& of(const HeadView& view) { return heads_.try_emplace(&view, format_, view).first->second; }

 private:
  const KvFormat& format_;
  std::map<const HeadView*, HeadRows> heads_;
};

double log_sum(const std::vector<double>& scores) {
  const double largest = scores.empty() ? kMinusInfinity : *std::max_element(scores.begin(), scores.end());
  if (largest == kMinusInfinity) return kMinusInfinity;
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - largest);
  return largest + std::log(sum);
}

std::vector<std::int32_t> slots_of(const AttendOp<Place::host>& op, int row, int head, int query) {
  const std::int32_t slots = seen(op.cache, op.rows, row, head);
  const Read& read = op.reads[static_cast<std::size_t>(row * op.cache.kv_heads + head)];
  std::vector<std::int32_t> all(static_cast<std::size_t>(slots));
  std::iota(all.begin(), all.end(), 0);
  switch (read.kind) {
    case Read::Kind::nothing:
      return {};
    case Read::Kind::everything:
      return all;
    case Read::Kind::window:
      std::erase_if(all, [&](std::int32_t slot) { return slot >= read.sink && slot < slots - read.local; });
      return all;
    case Read::Kind::sets:
      break;
  }
  const auto set = static_cast<std::size_t>(read.set + (read.per_query != 0 ? query : 0));
  const std::int32_t count = op.sets.count[set];
  if (count == kEverything) return all;
  const std::int32_t* list = op.sets.slots.raw() + set * static_cast<std::size_t>(op.sets.capacity);
  return {list, list + count};
}

/// The units that a choice takes beside those that are always in, by rank.
std::vector<std::size_t> best_units(const Choice& choice, const std::vector<double>& values) {
  std::vector<std::size_t> order;
  double held = 0;
  for (std::size_t unit = 0; unit < values.size(); ++unit) {
    const bool head = unit < static_cast<std::size_t>(choice.head_units);
    const bool tail = unit >= static_cast<std::size_t>(choice.tail_units);
    if (head || (tail && choice.tail_counts != 0)) held += values[unit];
    if (!head && !tail && values[unit] > kMinusInfinity) order.push_back(unit);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return values[a] > values[b]; });
  std::size_t wanted = 0;
  switch (choice.rule) {
    case ChoiceRule::count:
      wanted = static_cast<std::size_t>(choice.wanted);
      break;
    case ChoiceRule::mass:
      for (; wanted < order.size() && values[order[wanted]] > 0 && held < choice.value; ++wanted) {
        held += values[order[wanted]];
      }
      break;
    case ChoiceRule::threshold:
      while (wanted < order.size() && values[order[wanted]] >= choice.value) ++wanted;
      break;
  }
  order.resize(std::min(order.size(), wanted));
  return order;
}

std::size_t units_of(const Choice& choice, std::int32_t slots) {
  return static_cast<std::size_t>((slots + choice.block - 1) / choice.block);
}

/// The scores of a choice, pooled: [slots that the row sees], or [units].
std::vector<double> pooled_values(const SelectOp<Place::host>& op, const Choice& choice, std::size_t count) {
  const bool probability = choice.pooling == Pooling::mean_probability || choice.pooling == Pooling::max_probability;
  const bool largest = choice.pooling == Pooling::max_probability || choice.pooling == Pooling::max_score;
  const int first = choice.query < 0 ? 0 : choice.query;
  const int last = choice.query < 0 ? op.group : choice.query + 1;
  const bool across = takes_largest_head(choice);
  std::vector<double> pooled(count, across ? kMinusInfinity : 0.0);
  for (std::int32_t head = choice.head; head < choice.head + choice.heads; ++head) {
    std::vector<double> of_head(count, largest ? kMinusInfinity : 0.0);
    for (int query = first; query < last; ++query) {
      const std::size_t at = query_head(op.cache, op.group, {choice.row, head}, query);
      const double lse = op.scores.lse[at];
      for (std::size_t i = 0; i < count; ++i) {
        double value = op.scores.scores[at * op.scores.stride + i];
        if (probability) value = lse == kMinusInfinity ? 0 : std::exp(value - lse);
        of_head[i] = largest ? std::max(of_head[i], value) : of_head[i] + value / (last - first);
      }
    }
    if (choice.pooling == Pooling::probability_of_mean) {
      const double lse = log_sum(of_head);
      for (double& value : of_head) value = lse == kMinusInfinity ? 0 : std::exp(value - lse);
    }
    for (std::size_t i = 0; i < count; ++i) {
      pooled[i] = across ? std::max(pooled[i], of_head[i]) : pooled[i] + of_head[i] / choice.heads;
    }
  }
  return pooled;
}

/// The next bf16 above (below) one; both zeros are one step.
std::uint16_t next_bf16(std::uint16_t bits, bool up) {
  if ((bits & 0x7fffU) == 0) return up ? 0x0001 : 0x8001;
  return static_cast<std::uint16_t>((bits >> 15 != 0) == up ? bits - 1 : bits + 1);
}

/// A page's bound, as bits of its type.
double bound(KvType type, const std::byte* page, std::size_t i) {
  float whole = 0;
  std::uint16_t half = 0;
  if (type == KvType::f32) {
    std::memcpy(&whole, page + 4 * i, sizeof whole);
    return whole;
  }
  std::memcpy(&half, page + 2 * i, sizeof half);
  return type == KvType::f16 ? float_from_f16(half) : float_from_bf16(half);
}

/// Writes one of a cache of `type`: exact, but of q8_0 the next bf16 that is not below it (not above it).
void put_bound(KvType type, std::byte* page, std::size_t i, float value, bool up) {
  if (type == KvType::f32) {
    std::memcpy(page + 4 * i, &value, sizeof value);
    return;
  }
  std::uint16_t half = type == KvType::f16 ? f16_from_float(value) : bf16_from_float(value);
  if (type == KvType::q8_0) {
    const float got = float_from_bf16(half);
    if (up ? got < value : got > value) half = next_bf16(half, up);
  }
  std::memcpy(page + 2 * i, &half, sizeof half);
}

}  // namespace

void Operations::append(const AppendOp<Place::host>& op) {
  const auto dim = static_cast<std::size_t>(op.cache.format.dim);
  for (int row = 0; row < op.rows.rows; ++row) {
    for (int head = 0; head < op.cache.kv_heads; ++head) {
      const std::size_t at = (static_cast<std::size_t>(row) * static_cast<std::size_t>(op.cache.kv_heads) +
                              static_cast<std::size_t>(head)) *
                             dim;
      ref::append(op.cache.format, {.head = &view_of(op.cache, op.rows, row, head),
                                    .k = op.k.raw() + at,
                                    .v = op.v.raw() + at,
                                    .row_stride = dim,
                                    .slot = seen(op.cache, op.rows, row, head) - 1,
                                    .rows = 1});
    }
  }
}

void Operations::score(const ScoreOp<Place::host>& op) {
  const auto dim = static_cast<std::size_t>(op.cache.format.dim);
  CacheRows stored(op.cache.format);
  for (int i = 0; i < op.count; ++i) {
    const RowHead at = op.heads[static_cast<std::size_t>(i)];
    HeadRows& rows = stored.of(view_of(op.cache, op.rows, at.row, at.head));
    const std::int32_t slots = seen(op.cache, op.rows, at.row, at.head);
    for (int query = 0; query < op.group; ++query) {
      const std::size_t of = query_head(op.cache, op.group, at, query);
      std::vector<double> scores;
      for (std::int32_t slot = 0; slot < slots; ++slot) {
        scores.push_back(rows.score(op.q.raw() + of * dim, slot, op.scale));
        op.out.scores[of * op.out.stride + static_cast<std::size_t>(slot)] = static_cast<float>(scores.back());
      }
      op.out.lse[of] = static_cast<float>(log_sum(scores));
    }
  }
}

void Operations::summarise(const SummariseOp<Place::host>& op) {
  const KvFormat& format = op.cache.format;
  const auto dim = static_cast<std::size_t>(format.dim);
  for (int i = 0; i < op.count; ++i) {
    const PageRange& range = op.ranges[static_cast<std::size_t>(i)];
    const HeadView& view = op.cache.views[static_cast<std::size_t>(range.sequence * op.cache.kv_heads + range.head)];
    for (std::int32_t page = range.first; page < range.last; ++page) {
      std::vector<float> keys(kPageTokens * dim);
      ref::read_keys(format, view, page * kPageTokens, kPageTokens, keys.data());
      std::vector<float> least(dim), most(dim);
      ref::row_bounds({keys.data(), kPageTokens, format.dim}, least.data(), most.data());
      std::byte* const to = op.out.bounds.raw() + view.pages[page] * summary_bytes(format);
      for (std::size_t d = 0; d < dim; ++d) {
        put_bound(format.type, to, d, least[d], false);
        put_bound(format.type, to, dim + d, most[d], true);
      }
    }
  }
}

void Operations::search(const SearchOp<Place::host>& op) {
  const auto dim = static_cast<std::size_t>(op.cache.format.dim);
  for (int i = 0; i < op.count; ++i) {
    const Search& search = op.searches[static_cast<std::size_t>(i)];
    const HeadView& view = view_of(op.cache, op.rows, search.row, search.head);
    for (int query = 0; query < op.group; ++query) {
      const std::size_t of = query_head(op.cache, op.group, {search.row, search.head}, query);
      for (std::int32_t block = search.first; block < search.last; ++block) {
        double score = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          double least = std::numeric_limits<double>::infinity(), most = -least;
          for (std::int32_t page = block * search.pages; page < (block + 1) * search.pages; ++page) {
            const std::byte* from = op.summaries.bounds.raw() + view.pages[page] * summary_bytes(op.cache.format);
            least = std::min(least, bound(op.summaries.type, from, d));
            most = std::max(most, bound(op.summaries.type, from, dim + d));
          }
          const double q = op.q[of * dim + d];
          score += std::max(q * least, q * most);
        }
        op.out.scores[of * op.out.stride + static_cast<std::size_t>(block)] =
            static_cast<float>(score * static_cast<double>(op.scale));
      }
    }
  }
}

void Operations::select(const SelectOp<Place::host>& op) {
  for (int c = 0; c < op.count; ++c) {
    const Choice& choice = op.choices[static_cast<std::size_t>(c)];
    const auto slots = static_cast<std::size_t>(seen(op.cache, op.rows, choice.row, choice.head));
    const auto block = static_cast<std::size_t>(choice.block);
    std::vector<double> units(units_of(choice, static_cast<std::int32_t>(slots)),
                              choice.rule == ChoiceRule::mass ? 0.0 : kMinusInfinity);
    const std::size_t scored = choice.by_unit != 0 ? units.size() : slots;
    const std::vector<double> pooled = pooled_values(op, choice, scored);
    for (std::size_t i = 0; i < scored; ++i) {
      double& unit = units[choice.by_unit != 0 ? i : i / block];
      unit = choice.rule == ChoiceRule::mass ? unit + pooled[i] : std::max(unit, pooled[i]);
    }
    std::vector<char> taken(units.size(), 0);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      taken[unit] =
          unit < static_cast<std::size_t>(choice.head_units) || unit >= static_cast<std::size_t>(choice.tail_units);
    }
    for (const std::size_t unit : best_units(choice, units)) taken[unit] = 1;
    std::vector<std::int32_t> set;
    for (std::size_t i = 0; i < slots; ++i) {
      if (taken[i / block] != 0) set.push_back(static_cast<std::int32_t>(i));
    }
    const bool everything = set.size() == slots;
    set.resize(std::min(set.size(), static_cast<std::size_t>(op.sets.capacity)));
    const auto number = static_cast<std::size_t>(choice.set);
    op.sets.count[number] = everything ? kEverything : static_cast<std::int32_t>(set.size());
    if (everything) continue;
    std::copy(set.begin(), set.end(), op.sets.slots.raw() + number * static_cast<std::size_t>(op.sets.capacity));
  }
}

namespace {

/// Of a head's scores those of the set that it reads, at their places in it.
void keep_scores_of_set(const AttendOp<Place::host>& op, const RowHead& at, const Read& read) {
  const auto set = static_cast<std::size_t>(read.set);
  if (read.kind != Read::Kind::sets || op.sets.count[set] == kEverything) return;
  const std::int32_t* const slots = op.sets.slots.raw() + set * static_cast<std::size_t>(op.sets.capacity);
  const auto count = static_cast<std::size_t>(op.sets.count[set]);
  const std::int32_t seen_slots = seen(op.cache, op.rows, at.row, at.head);
  for (int query = 0; query < op.group; ++query) {
    const std::size_t of = query_head(op.cache, op.group, at, query);
    float* const row = op.scores.scores.raw() + of * op.scores.stride;
    const std::vector<float> all(row, row + seen_slots);
    std::vector<double> kept;
    for (std::size_t i = 0; i < count; ++i) {
      row[i] = all[static_cast<std::size_t>(slots[i])];
      kept.push_back(row[i]);
    }
    op.scores.lse[of] = static_cast<float>(log_sum(kept));
  }
}

}  // namespace

void Operations::attend(const AttendOp<Place::host>& op) {
  const auto dim = static_cast<std::size_t>(op.cache.format.dim);
  for (int i = 0; i < op.rows.rows * op.cache.kv_heads; ++i) {
    if (op.reads[static_cast<std::size_t>(i)].scores == 0) continue;
    const RowHead at{i / op.cache.kv_heads, i % op.cache.kv_heads};
    score({op.cache, op.rows, op.q, op.group, op.scale, &at, 1, op.scores});
    keep_scores_of_set(op, at, op.reads[static_cast<std::size_t>(i)]);
  }
  CacheRows stored(op.cache.format);
  for (int row = 0; row < op.rows.rows; ++row) {
    for (int head = 0; head < op.cache.kv_heads; ++head) {
      HeadRows& rows = stored.of(view_of(op.cache, op.rows, row, head));
      for (int query = 0; query < op.group; ++query) {
        const std::size_t of = query_head(op.cache, op.group, {row, head}, query);
        const std::vector<std::int32_t> slots = slots_of(op, row, head, query);
        std::vector<double> scores;
        for (const std::int32_t slot : slots) {
          scores.push_back(rows.score(op.q.raw() + of * dim, slot, op.scale));
        }
        const double lse = log_sum(scores);
        std::vector<double> out(dim, 0.0);
        for (std::size_t i = 0; i < slots.size() && lse > kMinusInfinity; ++i) {
          if (scores[i] == kMinusInfinity) continue;
          const double weight = std::exp(scores[i] - lse);
          const std::vector<double>& value = rows.value(slots[i]);
          for (std::size_t j = 0; j < dim; ++j) out[j] += weight * value[j];
        }
        for (std::size_t j = 0; j < dim; ++j) {
          op.out[of * dim + j] = static_cast<float>(out[j]);
          if (op.narrow) op.narrow[of * dim + j] = bf16_from_float(static_cast<float>(out[j]));
        }
        if (op.lse) op.lse[of] = static_cast<float>(lse);
      }
    }
  }
}

/// As rows that read everything.
void Operations::prefill(const PrefillOp<Place::host>& op) {
  for (int i = 0; i < op.count; ++i) {
    PrefillOp<Place::host> one = op;
    one.prompt = op.pieces[static_cast<std::size_t>(i)];
    one.count = 0;
    prefill(one);
  }
  if (op.count > 0) return;
  const PromptRows& prompt = op.prompt;
  const auto rows = static_cast<std::size_t>(prompt.rows), kv_heads = static_cast<std::size_t>(op.cache.kv_heads);
  const std::size_t heads = kv_heads * static_cast<std::size_t>(op.group);
  const std::size_t first = static_cast<std::size_t>(prompt.row) * heads;
  const std::vector<Read> reads(rows * kv_heads);
  const std::vector<std::int32_t> sequence(rows, prompt.sequence);
  std::vector<std::int32_t> behind(rows);
  for (std::size_t row = 0; row < rows; ++row) behind[row] = prompt.behind - static_cast<std::int32_t>(row);
  AttendOp<Place::host> all;
  all.cache = op.cache;
  all.rows = {sequence.data(), behind.data(), prompt.rows};
  all.q = op.q.raw() + first * static_cast<std::size_t>(op.cache.format.dim);
  all.group = op.group;
  all.scale = op.scale;
  all.reads = reads.data();
  all.out = op.out.raw() + first * static_cast<std::size_t>(op.cache.format.dim);
  if (op.lse) all.lse = op.lse.raw() + first;
  attend(all);
}

void Operations::column_sums(const ColumnSumsOp<Place::host>& op) {
  const auto dim = static_cast<std::size_t>(op.cache.format.dim);
  const auto kv_heads = static_cast<std::size_t>(op.cache.kv_heads);
  for (int p = 0; p < op.count; ++p) {
    const PromptRows& piece = op.pieces[static_cast<std::size_t>(p)];
    for (std::size_t head = 0; head < kv_heads; ++head) {
      const HeadView& view = op.cache.views[static_cast<std::size_t>(piece.sequence) * kv_heads + head];
      const std::int32_t before = view.slots - piece.behind + 1;
      HeadRows rows(op.cache.format, view);
      for (std::int32_t slot = 0; slot < before + piece.rows - 1; ++slot) {
        double sum = 0;
        for (std::int32_t row = std::max(0, slot - before + 1); row < piece.rows && !freed(view, slot); ++row) {
          for (int query = 0; query < op.group; ++query) {
            const std::size_t at =
                query_head(op.cache, op.group, {piece.row + row, static_cast<std::int32_t>(head)}, query);
            sum += std::exp(rows.score(op.q.raw() + at * dim, slot, op.scale) - static_cast<double>(op.lse[at]));
          }
        }
        op.sums[(static_cast<std::size_t>(p) * kv_heads + head) * op.stride + static_cast<std::size_t>(slot)] =
            static_cast<float>(sum);
      }
    }
  }
}

}  // namespace glimpse::kernels::ref
