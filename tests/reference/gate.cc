#include <algorithm>
#include <cmath>

#include "tests/reference/methods.h"

namespace glimpse::methods {
namespace {

enum class Way { forth, back };

/// Rotary embedding, pair by pair, as a complex product; back divides by what forth multiplied by.
Row turned(Row row, std::int64_t position, const Angles& angles, Way way) {
  const std::size_t pairs = angles.frequencies.size();
  const double magnitude = way == Way::forth ? angles.magnitude : 1 / angles.magnitude;
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::size_t a = angles.halves ? i : 2 * i;
    const std::size_t b = angles.halves ? i + pairs : 2 * i + 1;
    const double angle = (way == Way::forth ? 1.0 : -1.0) * static_cast<double>(position) * angles.frequencies[i];
    const double re = row.at(a), im = row.at(b);
    row[a] = magnitude * (re * std::cos(angle) - im * std::sin(angle));
    row[b] = magnitude * (re * std::sin(angle) + im * std::cos(angle));
  }
  return row;
}

void add_product(const Rows& matrix, const Row& row, Row& out) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    for (std::size_t o = 0; o < out.size(); ++o) out[o] += row[i] * matrix.at(i).at(o);
  }
}

Row normed(Row row, const Row& weight, double epsilon) {
  if (weight.empty()) return row;
  const double mean = dot(row, row) / static_cast<double>(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) row[i] *= weight.at(i) / std::sqrt(mean + epsilon);
  return row;
}

Row gate_query(const Gate& gate, const Rows& queries, std::int64_t position) {
  Row out(gate.query.at(0).at(0).size());
  for (std::size_t j = 0; j < queries.size(); ++j) {
    add_product(gate.query.at(j), turned(queries[j], position, gate.model, Way::back), out);
  }
  return turned(normed(out, gate.query_norm, gate.epsilon), position, gate.own, Way::forth);
}

Row gate_key(const Gate& gate, const Rows& keys, std::size_t first) {
  const auto block = static_cast<std::size_t>(gate.block);
  Rows before;
  for (std::size_t i = first; i < first + block; ++i) {
    before.push_back(turned(keys.at(i), static_cast<std::int64_t>(i), gate.model, Way::back));
  }
  Row most = before[0], least = before[0], mean(before[0].size());
  for (const Row& key : before) {
    for (std::size_t x = 0; x < key.size(); ++x) {
      most[x] = std::max(most[x], key[x]);
      least[x] = std::min(least[x], key[x]);
      mean[x] += key[x] / static_cast<double>(block);
    }
  }
  Row out(gate.query.at(0).at(0).size());
  add_product(gate.key.at(0), most, out);
  add_product(gate.key.at(1), least, out);
  add_product(gate.key.at(2), mean, out);
  return turned(normed(out, gate.key_norm, gate.epsilon), static_cast<std::int64_t>(first), gate.own, Way::forth);
}

}  // namespace

Row rope_frequencies(double base, std::int64_t dims) {
  Row all;
  for (std::int64_t i = 0; i < dims / 2; ++i) {
    all.push_back(std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dims)));
  }
  return all;
}

Row yarn_frequencies(double base, std::int64_t dims, std::pair<double, double> factor_context) {
  const auto [factor, context] = factor_context;
  const double pi = std::acos(-1.0);
  // The dimension whose wave turns so often over the original context.
  const auto dimension = [&, ctx = context](double turns) {
    return static_cast<double>(dims) * std::log(ctx / (turns * 2 * pi)) / (2 * std::log(base));
  };
  const double low = std::max(0.0, std::floor(dimension(32)));
  const double high = std::min(static_cast<double>(dims - 1), std::ceil(dimension(1)));
  Row all = rope_frequencies(base, dims);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    all[i] = all[i] * (1 - ramp) + all[i] / factor * ramp;
  }
  return all;
}

Scores gate_scores(const Gate& gate, const Rows& queries, const Rows& keys) {
  const auto block = static_cast<std::size_t>(gate.block);
  const Row query = gate_query(gate, queries, static_cast<std::int64_t>(keys.size()) - 1);
  Scores scores;
  for (std::size_t first = 0; first < keys.size(); first += block) {
    const bool whole = first + block <= keys.size();
    const double scale = std::sqrt(static_cast<double>(query.size()));
    scores.push_back(whole ? dot(query, gate_key(gate, keys, first)) / scale : 0.0);
  }
  return scores;
}

}  // namespace glimpse::methods
