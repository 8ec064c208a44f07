// Nodes in the order of their scores, as many as somebody asks for: a heap in scratch memory, because few of many are
// taken. Borrows the arrays; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

namespace glimpse::kv {

class Ranking {
 public:
  /// Ranks nodes 0 .. scores.size() - 1; `order` has room for as many. NaN ranks last. Equal scores: the lower first.
  Ranking(std::span<float> scores, std::span<std::int32_t> order)
      : scores_(scores), order_(order.first(scores.size())) {
    for (std::size_t i = 0; i < scores.size(); ++i) {
      if (scores[i] != scores[i]) scores[i] = -std::numeric_limits<float>::infinity();
      order_[i] = static_cast<std::int32_t>(i);
    }
    std::make_heap(order_.begin(), order_.end(), after());
  }
  bool empty() const { return order_.empty(); }
  std::int32_t pop() {
    std::pop_heap(order_.begin(), order_.end(), after());
    const std::int32_t best = order_.back();
    order_ = order_.first(order_.size() - 1);
    return best;
  }

 private:
  struct After {
    std::span<const float> scores;
    bool operator()(std::int32_t a, std::int32_t b) const {
      const float first = scores[static_cast<std::size_t>(a)];
      const float second = scores[static_cast<std::size_t>(b)];
      return first < second || (first == second && a > b);
    }
  };
  After after() const { return {scores_}; }

  std::span<const float> scores_;
  std::span<std::int32_t> order_;
};

}  // namespace glimpse::kv
