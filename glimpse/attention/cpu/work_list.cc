#include "glimpse/attention/cpu/work_list.h"

namespace glimpse::attention {

void WorkList::clear() {
  items_.clear();
  units_.clear();
}

int WorkList::add_unit(const Unit& unit) {
  units_.push_back(unit);
  return static_cast<int>(units_.size()) - 1;
}

void WorkList::seal() {
  if (units_.size() > unit_capacity_) {
    unit_capacity_ = units_.size() * 2;
    remaining_ = std::make_unique<std::atomic<int>[]>(unit_capacity_);
  }
  for (std::size_t i = 0; i < units_.size(); ++i) remaining_[i].store(units_[i].partials, std::memory_order_relaxed);
  next_.store(0, std::memory_order_release);
}

}  // namespace glimpse::attention
