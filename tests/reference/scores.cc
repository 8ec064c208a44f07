#include <algorithm>
#include <cmath>

#include "tests/reference/methods.h"

namespace glimpse::methods {

double dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t x = 0; x < a.size(); ++x) sum += a[x] * b[x];
  return sum;
}

Scores dots(const Row& query, const Rows& keys) {
  Scores scores;
  for (const Row& key : keys) scores.push_back(dot(query, key) / std::sqrt(static_cast<double>(query.size())));
  return scores;
}

Scores softmax(const Scores& scores) {
  Scores p = scores;
  if (p.empty()) return p;
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - top);
  for (double& value : p) value /= sum;
  return p;
}

std::vector<Scores> head_dots(const Rows& queries, const Rows& keys) {
  std::vector<Scores> heads;
  for (const Row& query : queries) heads.push_back(dots(query, keys));
  return heads;
}

std::vector<Scores> head_probabilities(const Rows& queries, const Rows& keys) {
  std::vector<Scores> heads = head_dots(queries, keys);
  for (Scores& head : heads) head = softmax(head);
  return heads;
}

Scores mean(const std::vector<Scores>& rows) {
  Scores pooled(rows.at(0).size());
  for (const Scores& row : rows) {
    for (std::size_t i = 0; i < pooled.size(); ++i) pooled[i] += row[i] / static_cast<double>(rows.size());
  }
  return pooled;
}

Scores maximum(const std::vector<Scores>& rows) {
  Scores pooled = rows.at(0);
  for (const Scores& row : rows) {
    for (std::size_t i = 0; i < pooled.size(); ++i) pooled[i] = std::max(pooled[i], row[i]);
  }
  return pooled;
}

Scores mean_query_dots(const Rows& queries, const Rows& keys) {
  return dots(mean(queries), keys);
}

Scores read_probabilities(const Row& query, const Rows& keys, const Set& set) {
  Rows read;
  for (const std::int32_t i : set) read.push_back(keys.at(static_cast<std::size_t>(i)));
  return softmax(dots(query, read));
}

double mass(const Scores& probabilities, const Set& set) {
  double sum = 0;
  for (const std::int32_t i : set) sum += probabilities.at(static_cast<std::size_t>(i));
  return sum;
}

}  // namespace glimpse::methods
