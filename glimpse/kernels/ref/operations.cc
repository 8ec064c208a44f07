#include "glimpse/kernels/ref/operations.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/kernels/ref/attention_ref.h"
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

double score_of(const KvFormat& format, const HeadView& view, const float* query, std::int32_t slot, float scale) {
  if (freed(view, slot)) return kMinusInfinity;
  return dot(query, read_row(format, view, view.k_plane, slot)) * static_cast<double>(scale);
}

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

/// What a choice's slots are ranked by, before units are made of them: [slots that the row sees].
std::vector<double> pooled_values(const SelectOp<Place::host>& op, const Choice& choice) {
  const std::int32_t slots = seen(op.cache, op.rows, choice.row, choice.head);
  const bool probability = choice.pooling == Pooling::mean_probability || choice.pooling == Pooling::max_probability;
  const bool largest = choice.pooling == Pooling::max_probability || choice.pooling == Pooling::max_score;
  const int first = choice.query < 0 ? 0 : choice.query;
  const int last = choice.query < 0 ? op.group : choice.query + 1;
  std::vector<double> pooled(static_cast<std::size_t>(slots), largest ? kMinusInfinity : 0.0);
  for (std::int32_t head = choice.head; head < choice.head + choice.heads; ++head) {
    for (int query = first; query < last; ++query) {
      const std::size_t at = query_head(op.cache, op.group, {choice.row, head}, query);
      const double lse = op.scores.lse[at];
      for (std::size_t i = 0; i < pooled.size(); ++i) {
        double value = op.scores.scores[at * op.scores.stride + i];
        if (probability) value = lse == kMinusInfinity ? 0 : std::exp(value - lse);
        pooled[i] = largest ? std::max(pooled[i], value) : pooled[i] + value / ((last - first) * choice.heads);
      }
    }
  }
  return pooled;
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
  for (int i = 0; i < op.count; ++i) {
    const RowHead at = op.heads[static_cast<std::size_t>(i)];
    const HeadView& view = view_of(op.cache, op.rows, at.row, at.head);
    const std::int32_t slots = seen(op.cache, op.rows, at.row, at.head);
    for (int query = 0; query < op.group; ++query) {
      const std::size_t of = query_head(op.cache, op.group, at, query);
      std::vector<double> scores;
      for (std::int32_t slot = 0; slot < slots; ++slot) {
        scores.push_back(score_of(op.cache.format, view, op.q.raw() + of * dim, slot, op.scale));
        op.out.scores[of * op.out.stride + static_cast<std::size_t>(slot)] = static_cast<float>(scores.back());
      }
      op.out.lse[of] = static_cast<float>(log_sum(scores));
    }
  }
}

void Operations::select(const SelectOp<Place::host>& op) {
  for (int c = 0; c < op.count; ++c) {
    const Choice& choice = op.choices[static_cast<std::size_t>(c)];
    const std::vector<double> pooled = pooled_values(op, choice);
    const auto block = static_cast<std::size_t>(choice.block);
    std::vector<double> units((pooled.size() + block - 1) / block,
                              choice.rule == ChoiceRule::mass ? 0.0 : kMinusInfinity);
    for (std::size_t i = 0; i < pooled.size(); ++i) {
      double& unit = units[i / block];
      unit = choice.rule == ChoiceRule::mass ? unit + pooled[i] : std::max(unit, pooled[i]);
    }
    std::vector<char> taken(units.size(), 0);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      taken[unit] =
          unit < static_cast<std::size_t>(choice.head_units) || unit >= static_cast<std::size_t>(choice.tail_units);
    }
    for (const std::size_t unit : best_units(choice, units)) taken[unit] = 1;
    std::vector<std::int32_t> set;
    for (std::size_t i = 0; i < pooled.size(); ++i) {
      if (taken[i / block] != 0) set.push_back(static_cast<std::int32_t>(i));
    }
    const bool everything = set.size() == pooled.size();
    set.resize(std::min(set.size(), static_cast<std::size_t>(op.sets.capacity)));
    const auto number = static_cast<std::size_t>(choice.set);
    op.sets.count[number] = everything ? kEverything : static_cast<std::int32_t>(set.size());
    if (everything) continue;
    std::copy(set.begin(), set.end(), op.sets.slots.raw() + number * static_cast<std::size_t>(op.sets.capacity));
  }
}

void Operations::attend(const AttendOp<Place::host>& op) {
  const auto dim = static_cast<std::size_t>(op.cache.format.dim);
  for (int row = 0; row < op.rows.rows; ++row) {
    for (int head = 0; head < op.cache.kv_heads; ++head) {
      const HeadView& view = view_of(op.cache, op.rows, row, head);
      for (int query = 0; query < op.group; ++query) {
        const std::size_t of = query_head(op.cache, op.group, {row, head}, query);
        const std::vector<std::int32_t> slots = slots_of(op, row, head, query);
        std::vector<double> scores;
        for (const std::int32_t slot : slots) {
          scores.push_back(score_of(op.cache.format, view, op.q.raw() + of * dim, slot, op.scale));
        }
        const double lse = log_sum(scores);
        std::vector<double> out(dim, 0.0);
        for (std::size_t i = 0; i < slots.size() && lse > kMinusInfinity; ++i) {
          if (scores[i] == kMinusInfinity) continue;
          const double weight = std::exp(scores[i] - lse);
          const std::vector<double> value = read_row(op.cache.format, view, view.v_plane, slots[i]);
          for (std::size_t j = 0; j < dim; ++j) out[j] += weight * value[j];
        }
        for (std::size_t j = 0; j < dim; ++j) op.out[of * dim + j] = static_cast<float>(out[j]);
        if (op.lse) op.lse[of] = static_cast<float>(lse);
      }
    }
  }
}

/// As rows that read everything, one by one.
void Operations::prefill(const PrefillOp<Place::host>& op) {
  const PromptRows& prompt = op.prompt;
  const std::size_t width = static_cast<std::size_t>(op.cache.kv_heads) * static_cast<std::size_t>(op.group) *
                            static_cast<std::size_t>(op.cache.format.dim);
  const std::vector<Read> reads(static_cast<std::size_t>(op.cache.kv_heads));
  for (std::int32_t row = 0; row < prompt.rows; ++row) {
    const std::int32_t behind = prompt.behind - row;
    const std::size_t at = static_cast<std::size_t>(prompt.row + row) * width;
    AttendOp<Place::host> one;
    one.cache = op.cache;
    one.rows = {&prompt.sequence, &behind, 1};
    one.q = op.q.raw() + at;
    one.group = op.group;
    one.scale = op.scale;
    one.reads = reads.data();
    one.out = op.out.raw() + at;
    attend(one);
  }
}

}  // namespace glimpse::kernels::ref
