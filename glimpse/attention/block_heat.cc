#include "glimpse/attention/block_heat.h"

#include <algorithm>

namespace glimpse::attention {

void BlockHeat::scale(double factor) {
  for (std::vector<float>& heat : heat_) {
    for (float& value : heat) value = static_cast<float>(factor * static_cast<double>(value));
  }
}

void BlockHeat::take(const HeatGains& gains, double decay) {
  before_.resize(heat_.size());
  heat_.swap(before_);
  for (std::size_t i = 0; i < heat_.size(); ++i) {
    const std::vector<float>& before = before_[i];
    const std::size_t gained = i < gains.size() ? gains[i].size() : 0;
    std::vector<float>& heat = heat_[i];
    heat.assign(before.begin(), before.end());
    heat.resize(std::max(before.size(), gained), 0.0F);
    for (std::size_t b = 0; b < gained; ++b) {
      heat[b] = static_cast<float>(decay * static_cast<double>(heat[b]) + gains[i][b]);
    }
  }
}

void BlockHeat::fade(std::int64_t tokens, double decay) {
  take(HeatGains(heat_.size(), std::vector<double>(blocks(tokens))), decay);
}

void BlockHeat::take_back(std::int64_t tokens) {
  if (before_.empty()) return;
  heat_.swap(before_);
  before_.clear();
  cut(tokens);
}

void BlockHeat::cut(std::int64_t tokens) {
  for (std::vector<float>& heat : heat_) heat.resize(blocks(tokens));
}

std::size_t BlockHeat::blocks(std::int64_t tokens) const {
  return static_cast<std::size_t>((tokens + block_ - 1) / block_);
}

}  // namespace glimpse::attention
