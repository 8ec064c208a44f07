#include "glimpse/evaluate/set_quality.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "glimpse/base/error.h"

namespace glimpse::evaluate {
namespace {

/// probability[t] = softmax over all keys of query . key / sqrt(d). query [d], keys [tokens, d].
void softmax(std::span<const float> query, std::span<const float> keys, std::vector<double>& probability) {
  const std::size_t dim = query.size();
  const double root = std::sqrt(static_cast<double>(dim));
  probability.resize(keys.size() / dim);
  for (std::size_t t = 0; t < probability.size(); ++t) {
    double dot = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      dot += static_cast<double>(query[i]) * static_cast<double>(keys[t * dim + i]);
    }
    probability[t] = dot / root;
  }
  const double top = *std::max_element(probability.begin(), probability.end());
  for (double& p : probability) p = std::exp(p - top);
  const double total = std::accumulate(probability.begin(), probability.end(), 0.0);
  for (double& p : probability) p /= total;
}

const std::vector<std::int32_t>& set_of(const HeadSets& head, std::size_t query_head, std::size_t group) {
  check(head.sets.size() == 1 || head.sets.size() == group, "a set for the group or one for each query head");
  return head.sets[head.sets.size() == 1 ? 0 : query_head];
}

}  // namespace

KeyHistory::KeyHistory(const plan::ModelShape& shape)
    : layers_(shape.layers), kv_heads_(shape.kv_heads), head_dim_(shape.head_dim) {
  keys_.resize(static_cast<std::size_t>(layers_) * static_cast<std::size_t>(kv_heads_));
}

std::size_t KeyHistory::place(int layer, int kv_head) const {
  return static_cast<std::size_t>(layer) * static_cast<std::size_t>(kv_heads_) + static_cast<std::size_t>(kv_head);
}

std::span<const float> KeyHistory::keys(int layer, int kv_head) const {
  return keys_[place(layer, kv_head)];
}

void KeyHistory::follow(const engine::Sequence& sequence) {
  for (int layer = 0; layer < layers_; ++layer) {
    for (int head = 0; head < kv_heads_; ++head) {
      std::vector<float>& to = keys_[place(layer, head)];
      for (std::int64_t position = tokens_; position < sequence.length(); ++position) {
        const std::vector<float> key = sequence.key(layer, head, position);
        to.insert(to.end(), key.begin(), key.end());
      }
    }
  }
  tokens_ = std::max(tokens_, sequence.length());
}

void KeyHistory::replace(const engine::Sequence& sequence) {
  for (int layer = 0; layer < layers_; ++layer) {
    for (int head = 0; head < kv_heads_; ++head) {
      std::vector<float>& to = keys_[place(layer, head)];
      for (const std::int32_t position : sequence.live(layer, head)) {
        const std::vector<float> key = sequence.key(layer, head, position);
        std::copy(key.begin(), key.end(), to.begin() + static_cast<std::ptrdiff_t>(position) * head_dim_);
      }
    }
  }
}

SetQuality& SetQuality::operator+=(const SetQuality& other) {
  mass += other.mass;
  best_mass += other.best_mass;
  recall += other.recall;
  tokens += other.tokens;
  count += other.count;
  return *this;
}

std::optional<double> SetQuality::mean_tokens() const {
  if (count == 0) return std::nullopt;
  return tokens / static_cast<double>(count);
}

std::optional<double> SetQuality::mass_recall() const {
  if (count == 0) return std::nullopt;
  return std::min(mass / best_mass, 1.0);  // rounding may carry it over
}

std::optional<double> SetQuality::token_recall() const {
  if (count == 0) return std::nullopt;
  return recall / static_cast<double>(count);
}

SetQuality quality(const HeadSets& head, std::span<const float> keys, int head_dim) {
  const auto dim = static_cast<std::size_t>(head_dim);
  const std::size_t tokens = keys.size() / dim, group = head.query.size() / dim;
  std::vector<double> probability;
  std::vector<std::size_t> order(tokens);
  SetQuality sum;
  for (std::size_t g = 0; g < group; ++g) {
    softmax(std::span(head.query).subspan(g * dim, dim), keys, probability);
    const std::vector<std::int32_t>& set = set_of(head, g, group);
    check(!set.empty() && set.size() <= tokens, "a set holds tokens of the context");
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto cut = order.begin() + static_cast<std::ptrdiff_t>(set.size());
    std::nth_element(order.begin(), cut - 1, order.end(), [&](std::size_t a, std::size_t b) {
      return probability[a] != probability[b] ? probability[a] > probability[b] : a < b;
    });
    std::vector<char> best(tokens, 0);
    for (auto it = order.begin(); it != cut; ++it) {
      best[*it] = 1;
      sum.best_mass += probability[*it];
    }
    std::int64_t found = 0;
    for (const std::int32_t token : set) {
      sum.mass += probability[static_cast<std::size_t>(token)];
      found += best[static_cast<std::size_t>(token)];
    }
    sum.recall += static_cast<double>(found) / static_cast<double>(set.size());
    sum.tokens += static_cast<double>(set.size());
    ++sum.count;
  }
  return sum;
}

void SetSample::watch(engine::Sequence& sequence) {
  sequence.on_sets([this](const engine::SetTrace& trace) {
    if (trace.reads_all) return;
    HeadSets head{trace.layer, trace.kv_head, {}, {trace.query.begin(), trace.query.end()}};
    if (trace.query_sets.empty()) {
      head.sets.emplace_back(trace.tokens.begin(), trace.tokens.end());
    } else {
      head.sets.assign(trace.query_sets.begin(), trace.query_sets.end());
    }
    heads_.push_back(std::move(head));
  });
}

SetQuality SetSample::take(const KeyHistory& keys, int head_dim) {
  SetQuality sum;
  for (const HeadSets& head : heads_) sum += quality(head, keys.keys(head.layer, head.kv_head), head_dim);
  heads_.clear();
  return sum;
}

}  // namespace glimpse::evaluate
