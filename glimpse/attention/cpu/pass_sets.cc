#include "glimpse/attention/cpu/pass_sets.h"

#include <algorithm>
#include <numeric>

#include "glimpse/base/error.h"

namespace glimpse::attention {

void PassSets::open(int sets, std::int64_t capacity) {
  const auto count = static_cast<std::size_t>(sets);
  capacity_ = static_cast<std::int32_t>(capacity);
  const std::size_t bytes = count * static_cast<std::size_t>(capacity) * sizeof(std::int32_t);
  if (bytes > slots_.size()) {
    slots_ = {};
    slots_ = HostBuffer(bytes + bytes / 4);  // so that a decoded token seldom makes it grow
  }
  counts_.assign(count, 0);
  if (chosen_.size() < count) chosen_.resize(count);
}

void PassSets::publish(int set, std::span<const std::int32_t> list) {
  check(list.size() <= static_cast<std::size_t>(capacity_), "a set fits into the table");
  std::copy(list.begin(), list.end(), row(set));
  counts_[static_cast<std::size_t>(set)] = static_cast<std::int32_t>(list.size());
}

void PassSets::close(int first, int lists, std::int64_t tokens) {
  const auto counts = std::span(counts_).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(lists));
  const bool everything = std::all_of(counts.begin(), counts.end(), [&](std::int32_t count) {
    return count == kernels::kEverything || count >= tokens;
  });
  for (int set = first; set < first + lists; ++set) {
    std::int32_t& count = counts_[static_cast<std::size_t>(set)];
    if (everything) {
      count = kernels::kEverything;
    } else if (count == kernels::kEverything) {
      std::iota(row(set), row(set) + tokens, 0);
      count = static_cast<std::int32_t>(tokens);
    }
  }
}

kernels::SetTable<kernels::Place::host> PassSets::table() {
  return {row(0), counts_.data(), capacity_, static_cast<int>(counts_.size())};
}

std::span<const std::int32_t> PassSets::list(int set) const {
  return {row(set), static_cast<std::size_t>(counts_[static_cast<std::size_t>(set)])};
}

PublishedSet PassSets::published(int set, int lists, std::int64_t tokens) const {
  PublishedSet made;
  made.everything = everything(set);
  for (int i = set; i < set + lists; ++i) {
    std::vector<std::int32_t>& positions = made.lists.emplace_back();
    if (made.everything) {
      positions.resize(static_cast<std::size_t>(tokens));
      std::iota(positions.begin(), positions.end(), 0);
    } else {
      const std::span<const std::int32_t> own = list(i);
      positions.assign(own.begin(), own.end());
    }
  }
  return made;
}

}  // namespace glimpse::attention
