#include <algorithm>
#include <cmath>

#include "tests/reference/methods.h"

namespace glimpse::methods {
namespace {

Row mean_key(const Rows& keys, std::size_t begin, std::size_t end) {
  Row centre(keys.at(begin).size());
  for (std::size_t i = begin; i < end; ++i) {
    for (std::size_t x = 0; x < centre.size(); ++x) centre[x] += keys[i][x] / static_cast<double>(end - begin);
  }
  return centre;
}

double min_max_score(const Row& query, const Rows& keys, std::size_t begin, std::size_t end) {
  double score = 0;
  for (std::size_t x = 0; x < query.size(); ++x) {
    double low = keys[begin][x], high = keys[begin][x];
    for (std::size_t i = begin; i < end; ++i) {
      low = std::min(low, keys[i][x]);
      high = std::max(high, keys[i][x]);
    }
    score += std::max(query[x] * low, query[x] * high);
  }
  return score;
}

/// The centre is the midpoint of the page's bounds, which keeps the radius near its least; the mean lies off it.
double sphere_score(const Row& query, const Rows& keys, std::size_t begin, std::size_t end) {
  Row centre(query.size());
  for (std::size_t x = 0; x < centre.size(); ++x) {
    double least = keys[begin][x], most = keys[begin][x];
    for (std::size_t i = begin; i < end; ++i) {
      least = std::min(least, keys[i][x]);
      most = std::max(most, keys[i][x]);
    }
    centre[x] = (least + most) / 2;
  }
  double radius = 0;
  for (std::size_t i = begin; i < end; ++i) {
    double square = 0;
    for (std::size_t x = 0; x < centre.size(); ++x) square += std::pow(keys[i][x] - centre[x], 2);
    radius = std::max(radius, std::sqrt(square));
  }
  return dot(query, centre) + std::sqrt(dot(query, query)) * radius;
}

double deviation_score(const Row& query, const Rows& keys, std::size_t begin, std::size_t end) {
  const Row centre = mean_key(keys, begin, end);
  double variance = 0;
  for (std::size_t x = 0; x < query.size(); ++x) {
    double square = 0;
    for (std::size_t i = begin; i < end; ++i) square += std::pow(keys[i][x] - centre[x], 2);
    variance += query[x] * query[x] * square / static_cast<double>(end - begin);
  }
  return std::sqrt(variance);
}

}  // namespace

Scores page_scores(const Row& query, const Rows& keys, std::int64_t page, std::pair<PageScore, double> how) {
  Scores scores;
  for (std::size_t begin = 0; begin < keys.size(); begin += static_cast<std::size_t>(page)) {
    const std::size_t end = std::min(keys.size(), begin + static_cast<std::size_t>(page));
    const auto [kind, weight] = how;
    double score = 0;
    if (kind == PageScore::min_max) score = min_max_score(query, keys, begin, end);
    if (kind == PageScore::sphere) score = sphere_score(query, keys, begin, end);
    if (kind == PageScore::landmark || kind == PageScore::mean_deviation) {
      score = dot(query, mean_key(keys, begin, end));
    }
    if (kind == PageScore::mean_deviation) score += weight * deviation_score(query, keys, begin, end);
    scores.push_back(score / std::sqrt(static_cast<double>(query.size())));
  }
  return scores;
}

Scores landmark_scores(const Rows& queries, const Rows& keys, std::int64_t chunk, const Set& candidates) {
  std::vector<Scores> rows;
  for (const Row& query : queries) {
    const Scores products = page_scores(query, keys, chunk, {PageScore::landmark, 0});
    Scores chosen;
    for (const std::int32_t c : candidates) chosen.push_back(products.at(static_cast<std::size_t>(c)));
    const Scores probabilities = softmax(chosen);
    rows.emplace_back(products.size(), -HUGE_VAL);
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      rows.back()[static_cast<std::size_t>(candidates[i])] = std::log(probabilities[i]);
    }
  }
  return maximum(rows);
}

Scores chunk_cohesion(const Rows& keys, std::int64_t chunk) {
  const auto size = static_cast<std::size_t>(chunk);
  Scores least;
  for (std::size_t begin = 0; begin + size <= keys.size(); begin += size) {
    const Row centre = mean_key(keys, begin, begin + size);
    double cosine = 1;
    for (std::size_t i = begin; i < begin + size; ++i) {
      const double norms = std::sqrt(dot(centre, centre) * dot(keys[i], keys[i]));
      cosine = std::min(cosine, norms > 0 ? dot(centre, keys[i]) / norms : 0);
    }
    least.push_back(cosine);
  }
  return least;
}

}  // namespace glimpse::methods
