#include "glimpse/kernels/choose.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/cpu/row_outputs.h"

namespace glimpse::kernels {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Sum of a block's probabilities, for the rule that speaks of mass.
void block_sum(std::span<const float> pooled, std::size_t block, std::span<float> out) {
  for (std::size_t b = 0; b < out.size(); ++b) {
    double sum = 0;
    const std::size_t end = std::min(pooled.size(), (b + 1) * block);
    for (std::size_t i = b * block; i < end; ++i) sum += static_cast<double>(pooled[i]);
    out[b] = static_cast<float>(sum);
  }
}

/// Takes the units that are always in out of the scores, which choose among the rest: how many of it.
std::size_t free_units(const Choice& choice, std::span<float> units, std::span<std::byte> workspace) {
  double held = 0;  // the mass of what counts inside the budget
  const auto take = [&](std::size_t begin, std::size_t end, bool counts) {
    for (std::size_t i = begin; i < end; ++i) {
      if (counts) held += static_cast<double>(units[i]);
      units[i] = kNever;
    }
  };
  take(0, static_cast<std::size_t>(choice.head_units), true);
  take(static_cast<std::size_t>(choice.tail_units), units.size(), choice.tail_counts != 0);
  switch (choice.rule) {
    case ChoiceRule::count:
      return static_cast<std::size_t>(choice.wanted);
    case ChoiceRule::mass:
      return count_for_mass(units, choice.value - held, workspace);
    case ChoiceRule::threshold:
      return count_above(units, static_cast<float>(choice.value));
  }
  return 0;
}

void pool_head(Pooling pooling, const HeadScores& head, std::span<float> pooled) {
  switch (pooling) {
    case Pooling::mean_probability:
      return pool_mean_probability(head.scores, head.stride, head.lse, head.group, pooled);
    case Pooling::max_probability:
      return pool_max_probability(head.scores, head.stride, head.lse, head.group, pooled);
    case Pooling::mean_score:
      return pool_mean_score(head.scores, head.stride, head.group, pooled);
    case Pooling::max_score:
      return pool_max_score(head.scores, head.stride, head.group, pooled);
    case Pooling::probability_of_mean: {
      pool_mean_score(head.scores, head.stride, head.group, pooled);
      const float sum = log_sum_exp(pooled);
      return pool_mean_probability(pooled.data(), pooled.size(), &sum, 1, pooled);
    }
  }
}

}  // namespace

void pool(const Choice& choice, std::span<const HeadScores> heads, std::span<float> one, std::span<float> pooled) {
  const bool largest = takes_largest_head(choice);
  one = one.first(heads.size() > 1 ? pooled.size() : 0);
  pool_head(choice.pooling, heads.front(), pooled);
  for (const HeadScores& head : heads.subspan(1)) {
    pool_head(choice.pooling, head, one);
    for (std::size_t i = 0; i < pooled.size(); ++i)
      pooled[i] = largest ? std::max(pooled[i], one[i]) : pooled[i] + one[i];
  }
  if (largest || heads.size() == 1) return;
  const float share = 1.0F / static_cast<float>(heads.size());
  for (float& value : pooled) value *= share;
}

std::size_t choose(const Choice& choice, std::span<float> pooled, const ChooseSpace& space, std::int32_t* out) {
  const std::size_t slots = pooled.size();
  const auto block = static_cast<std::size_t>(choice.block);
  std::span<float> units = pooled;
  if (block > 1) {
    units = space.units.first((slots + block - 1) / block);
    if (choice.rule == ChoiceRule::mass) {
      block_sum(pooled, block, units);
    } else {
      block_max(pooled, choice.block, units);
    }
  }
  return choose_units(choice, units, slots, space, out);
}

std::size_t choose_units(const Choice& choice, std::span<float> units, std::size_t slots, const ChooseSpace& space,
                         std::int32_t* out) {
  const auto block = static_cast<std::size_t>(choice.block);
  const auto head = static_cast<std::size_t>(choice.head_units);
  const auto tail = static_cast<std::size_t>(choice.tail_units);
  check(head <= tail && tail <= units.size(), "what is always in a set lies in the context");
  const std::size_t wanted = free_units(choice, units, space.workspace);
  const std::size_t count = select_top_k(units, wanted, space.chosen, space.workspace);

  std::int32_t* end = out;
  const auto add = [&](std::size_t first, std::size_t last) {  // units
    const std::size_t from = first * block;
    const std::size_t to = std::min(slots, last * block);
    std::iota(end, end + (to - from), static_cast<std::int32_t>(from));
    end += to - from;
  };
  add(0, head);
  for (std::size_t i = 0; i < count; ++i) {
    const auto unit = static_cast<std::size_t>(space.chosen[i]);
    if (unit >= head && unit < tail) add(unit, unit + 1);
  }
  if (tail < units.size()) add(tail, units.size());
  return static_cast<std::size_t>(end - out);
}

void SelectSpace::reserve(std::size_t slots) {
  if (pooled.size() >= slots) return;
  const std::size_t room = slots + slots / 4 + 1024;  // grows with the context, not with every step
  pooled.resize(room);
  one.resize(room);
  units.resize(room);
  chosen.resize(room);
  list.resize(room);
  workspace.resize(select_workspace(room));
}

void select_set(const SelectOp<Place::host>& op, const Choice& choice, SelectSpace& space) {
  const auto slots = static_cast<std::size_t>(seen(op.cache, op.rows, {choice.row, choice.head}));
  const auto block = static_cast<std::size_t>(choice.block);
  const auto first_of_group = static_cast<std::size_t>(std::max(choice.query, 0));
  space.reserve(slots);
  space.heads.clear();
  for (std::int32_t head = choice.head; head < choice.head + choice.heads; ++head) {
    const std::size_t query = first_query(op.cache, op.group, {choice.row, head}) + first_of_group;
    space.heads.push_back({op.scores.scores.raw() + query * op.scores.stride, op.scores.stride,
                           op.scores.lse.raw() + query, choice.query < 0 ? op.group : 1});
  }
  const bool by_unit = choice.by_unit != 0;
  const std::span<float> pooled(space.pooled.data(), by_unit ? (slots + block - 1) / block : slots);
  pool(choice, space.heads, space.one, pooled);
  const ChooseSpace room{space.units, space.chosen, space.workspace};
  const std::size_t count = by_unit ? choose_units(choice, pooled, slots, room, space.list.data())
                                    : choose(choice, pooled, room, space.list.data());
  const auto set = static_cast<std::size_t>(choice.set), capacity = static_cast<std::size_t>(op.sets.capacity);
  const std::size_t kept = std::min(count, capacity);
  op.sets.count[set] = count == slots ? kEverything : static_cast<std::int32_t>(kept);
  if (count < slots) std::copy_n(space.list.data(), kept, op.sets.slots.raw() + set * capacity);
}

}  // namespace glimpse::kernels
