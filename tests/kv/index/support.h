// What the index tests share: a head of keys in scattered pages, made streams of keys, and sets checked against scores.
// One thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "glimpse/kernels/ref/attention_ref.h"
#include "glimpse/kernels/ref/index_ref.h"
#include "glimpse/kv/index/key_index.h"

namespace glimpse::kv::testing {

using Row = std::vector<double>;

/// Keys of one head, written as the cache stores them.
class Keys {
 public:
  Keys(kernels::KvFormat format, std::int32_t capacity) : format_(format) {
    const std::size_t pages = static_cast<std::size_t>(capacity + kernels::kPageTokens - 1) / kernels::kPageTokens;
    for (std::size_t p = 0; p < pages; ++p) pages_.push_back(static_cast<kernels::PageId>(pages - 1 - p));
    k_.assign(pages * format.page_bytes(), std::byte{0xff});
    v_ = k_;
  }
  std::int32_t size() const { return size_; }
  void append(const std::vector<float>& row) { put(size_++, row); }
  void put(std::int32_t slot, const std::vector<float>& row) {
    const kernels::HeadView head = view();
    kernels::ref::append(format_,
                         {.head = &head, .k = row.data(), .v = row.data(), .row_stride = 0, .slot = slot, .rows = 1});
  }
  /// The key as it is stored.
  Row key(std::int64_t slot) {
    std::vector<float> row(static_cast<std::size_t>(format_.dim));
    kernels::ref::read_keys(format_, view(), static_cast<std::int32_t>(slot), 1, row.data());
    return {row.begin(), row.end()};
  }
  kernels::HeadView view() {
    return {.k_plane = k_.data(), .v_plane = v_.data(), .pages = pages_.data(), .positions = nullptr, .slots = size_};
  }
  /// Valid until the next append.
  KeySource source(std::int64_t prompt, std::span<const Boundary> boundaries = {}) {
    head_ = view();
    return {&head_, format_, boundaries, prompt};
  }
  int dim() const { return format_.dim; }

 private:
  kernels::KvFormat format_;
  std::int32_t size_ = 0;
  std::vector<kernels::PageId> pages_;
  std::vector<std::byte> k_, v_;
  kernels::HeadView head_;
};

/// Random numbers, keys and classes of one test.
class Made {
 public:
  explicit Made(std::uint64_t seed) : random_(seed) {}
  float normal() { return std::normal_distribution<float>()(random_); }
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  std::vector<float> row(int dim) {
    std::vector<float> values(static_cast<std::size_t>(dim));
    for (float& x : values) x = normal();
    return values;
  }
  std::vector<float> queries(int group, int dim) { return row(group * dim); }
  /// The next key: topics that last for some tokens, with noise; or noise alone.
  std::vector<float> key(int dim, bool clustered) {
    if (!clustered) return row(dim);
    if (topics_.empty()) {
      for (int t = 0; t < 12; ++t) topics_.push_back(row(dim));
    }
    if (below(20) == 0) topic_ = static_cast<std::size_t>(below(12));
    std::vector<float> values = row(dim);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.4F * values[i] + topics_[topic_][i];
    return values;
  }
  Boundary boundary() {
    const int roll = below(100);
    return roll < 2    ? Boundary::section
           : roll < 8  ? Boundary::sentence
           : roll < 18 ? Boundary::clause
           : roll < 80 ? Boundary::space
                       : Boundary::none;
  }

 private:
  std::mt19937_64 random_;
  std::vector<std::vector<float>> topics_;
  std::size_t topic_ = 0;
};

/// Keys, the class of each, and the numbers that queries are then made of.
struct Stream {
  Stream(std::uint64_t seed, int dim, int tokens, bool clustered = true)
      : made(seed), keys({KvType::bf16, dim}, tokens) {
    for (int t = 0; t < tokens; ++t) {
      keys.append(made.key(dim, clustered));
      classes.push_back(made.boundary());
    }
  }
  KeySource source(std::int64_t prompt) { return keys.source(prompt, classes); }

  Made made;
  Keys keys;
  std::vector<Boundary> classes;
};

inline double dot(const float* query, const Row& row) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) sum += static_cast<double>(query[i]) * row[i];
  return sum;
}

inline double norm(const Row& row) {
  double sum = 0;
  for (const double x : row) sum += x * x;
  return std::sqrt(sum);
}

/// `score(query)` of each query of the group, pooled by the plan's word.
template <class Score>
double pooled(plan::GroupPooling pooling, const IndexQuery& query, std::size_t dim, const Score& score) {
  const auto group = static_cast<std::size_t>(query.group);
  if (pooling == plan::GroupPooling::mean_query) {
    std::vector<float> mean(dim);
    for (std::size_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < group; ++j) sum += query.queries[j * dim + i];
      mean[i] = static_cast<float>(sum / query.group);
    }
    return score(mean.data());
  }
  double most = -std::numeric_limits<double>::infinity();
  double sum = 0;
  for (std::size_t j = 0; j < group; ++j) {
    const double one = score(query.queries + j * dim);
    most = std::max(most, one);
    sum += one;
  }
  return pooling == plan::GroupPooling::mean_score ? sum / query.group : most;
}

inline plan::Selector selector_of(plan::Source source, std::int64_t budget, int block = 1) {
  plan::Selector selector;
  plan::Term term;
  term.source = source;
  term.group = plan::GroupPooling::max_score;
  selector.terms.push_back(term);
  selector.budget = {plan::BudgetRule::tokens, static_cast<double>(budget)};
  selector.block = block;
  return selector;
}

inline bool contains(const std::vector<std::int32_t>& set, std::int64_t token) {
  return std::binary_search(set.begin(), set.end(), static_cast<std::int32_t>(token));
}

/// Ascending, without duplicates, within [0, tokens).
inline void expect_set(const std::vector<std::int32_t>& set, std::int64_t tokens) {
  ASSERT_FALSE(set.empty());
  EXPECT_TRUE(std::adjacent_find(set.begin(), set.end(), std::greater_equal<>()) == set.end());
  EXPECT_GE(set.front(), 0);
  EXPECT_EQ(set.back(), tokens - 1) << "the current token is in every set";
}

/// The `wanted` best of `scores` are chosen, but that those within rounding of the cut may swap.
inline void expect_best(const std::vector<double>& scores, const std::vector<bool>& chosen, std::size_t wanted) {
  const auto count = static_cast<std::size_t>(std::count(chosen.begin(), chosen.end(), true));
  ASSERT_EQ(count, std::min(wanted, scores.size()));
  if (count == 0 || count == scores.size()) return;
  std::vector<double> order = scores;
  std::sort(order.begin(), order.end(), std::greater<>());
  const double cut = order[count - 1];
  const double rounding = 1e-5 * std::max(std::fabs(order.front()), std::fabs(order.back()));
  for (std::size_t i = 0; i < scores.size(); ++i) {
    EXPECT_TRUE(chosen[i] ? scores[i] >= cut - rounding : scores[i] <= cut + rounding)
        << "unit " << i << " of score " << scores[i] << " at a cut of " << cut;
  }
}

}  // namespace glimpse::kv::testing
