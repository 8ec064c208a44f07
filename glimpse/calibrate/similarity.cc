#include "glimpse/calibrate/similarity.h"

#include <algorithm>
#include <numeric>

#include "glimpse/base/error.h"

namespace glimpse::calibrate {
namespace {

double mass(std::span<const float> row, std::span<const std::int32_t> tokens) {
  double sum = 0;
  for (const std::int32_t token : tokens) sum += static_cast<double>(row[static_cast<std::size_t>(token)]);
  return sum;
}

}  // namespace

Similarity::Similarity(const plan::ModelShape& shape, int budget) : shape_(shape), budget_(budget) {
  check(budget > 0, "a set of one token or more");
  const std::size_t all = at(shape.layers, 0, 0, 0);
  least_.resize(all);
  similarity_.resize(all);
  captured_.resize(all);
  needle_.resize(static_cast<std::size_t>(shape.layers * shape.kv_heads));
}

std::size_t Similarity::at(int a, int b, int to, int from) const {
  const auto layers = static_cast<std::size_t>(shape_.layers), heads = static_cast<std::size_t>(shape_.kv_heads);
  return ((static_cast<std::size_t>(a) * layers + static_cast<std::size_t>(b)) * heads + static_cast<std::size_t>(to)) *
             heads +
         static_cast<std::size_t>(from);
}

// The step's own token and the best of those before it; equal ones: the lower position.
void Similarity::best(std::span<const float> row, std::int64_t seen, std::vector<std::int32_t>& order) const {
  const auto own = static_cast<std::int32_t>(seen - 1);
  order.resize(static_cast<std::size_t>(own));
  std::iota(order.begin(), order.end(), 0);
  const std::size_t count = std::min(order.size(), static_cast<std::size_t>(budget_ - 1));
  if (count < order.size()) {
    std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                     [&](std::int32_t x, std::int32_t y) {
                       const float p = row[static_cast<std::size_t>(x)], q = row[static_cast<std::size_t>(y)];
                       return p != q ? p > q : x < y;
                     });
    order.resize(count);
  }
  order.push_back(own);
}

void Similarity::begin(const Recording& recording) {
  recording_ = &recording;
  sets_.assign(static_cast<std::size_t>(shape_.layers), {});
  std::fill(least_.begin(), least_.end(), 1.0);
}

void Similarity::add_layer(int b, const LayerAttention& attention, evaluate::ThreadTeam* team) {
  const int places = attention.steps * shape_.kv_heads;
  auto& own = sets_[static_cast<std::size_t>(b)];
  own.resize(static_cast<std::size_t>(places));
  std::vector<double> most(own.size());  // [step, KV head] on its own set
  // Room for them first: a thread of a team may not throw.
  const int parts = team != nullptr ? team->threads() : 1;
  std::vector<std::vector<std::int32_t>> order(static_cast<std::size_t>(parts));
  for (auto& each : order) each.reserve(static_cast<std::size_t>(attention.tokens));
  for (auto& set : own) set.reserve(static_cast<std::size_t>(std::min<std::int64_t>(budget_, attention.tokens)));
  evaluate::share(team, parts, [&](int part) {
    std::vector<std::int32_t>& best_ones = order[static_cast<std::size_t>(part)];
    for (int i = places * part / parts; i < places * (part + 1) / parts; ++i) {
      const auto place = static_cast<std::size_t>(i);
      const int step = i / shape_.kv_heads;
      const std::span<const float> row = attention.row(step, i % shape_.kv_heads);
      best(row, recording_->first + step + 1, best_ones);
      own[place].assign(best_ones.begin(), best_ones.end());
      most[place] = mass(row, own[place]);
    }
  });
  std::vector<char> is_needle(static_cast<std::size_t>(attention.tokens), 0);
  for (const std::int32_t token : recording_->needle) is_needle[static_cast<std::size_t>(token)] = 1;
  const auto copies = [&](int step) { return step >= recording_->answer && !recording_->needle.empty(); };
  for (int step = 0; step < attention.steps; ++step) {
    if (!copies(step)) continue;
    for (int to = 0; to < shape_.kv_heads; ++to) {
      needle_[static_cast<std::size_t>(b * shape_.kv_heads + to)] += mass(attention.row(step, to), recording_->needle);
    }
  }
  evaluate::share(team, b + 1, [&](int a) {
    for (int step = 0; step < attention.steps; ++step) {
      for (int to = 0; to < shape_.kv_heads; ++to) {
        const std::span<const float> row = attention.row(step, to);
        const double all = most[static_cast<std::size_t>(step * shape_.kv_heads + to)];
        for (int from = 0; from < shape_.kv_heads; ++from) {
          const auto& set = sets_[static_cast<std::size_t>(a)][static_cast<std::size_t>(step * shape_.kv_heads + from)];
          double sum = 0, found = 0;
          for (const std::int32_t token : set) {
            const auto i = static_cast<std::size_t>(token);
            sum += static_cast<double>(row[i]);
            if (is_needle[i] != 0) found += static_cast<double>(row[i]);
          }
          double& least = least_[at(a, b, to, from)];
          least = std::min(least, all > 0 ? sum / all : 1.0);
          if (copies(step)) captured_[at(a, b, to, from)] += found;
        }
      }
    }
  });
}

void Similarity::end() {
  for (std::size_t i = 0; i < similarity_.size(); ++i) similarity_[i] += least_[i];
  ++recordings_;
  recording_ = nullptr;
  sets_.clear();
}

double Similarity::similarity(int a, int b, int to, int from) const {
  return recordings_ == 0 ? 0 : similarity_[at(a, b, to, from)] / static_cast<double>(recordings_);
}

std::vector<double> Similarity::by_layer() const {
  const auto layers = static_cast<std::size_t>(shape_.layers);
  std::vector<double> means(layers * layers);
  for (int a = 0; a < shape_.layers; ++a) {
    for (int b = a; b < shape_.layers; ++b) {
      double sum = 0;
      for (int to = 0; to < shape_.kv_heads; ++to) {
        double most = 0;
        for (int from = 0; from < shape_.kv_heads; ++from) {
          if (a < b || from == to) most = std::max(most, similarity(a, b, to, from));
        }
        sum += most;
      }
      means[static_cast<std::size_t>(a) * layers + static_cast<std::size_t>(b)] = sum / shape_.kv_heads;
    }
  }
  return means;
}

double Similarity::needle_mass() const {
  return std::accumulate(needle_.begin(), needle_.end(), 0.0);
}

double Similarity::captured(int a, int b, int to, int from) const {
  const double all = needle_mass();
  return all > 0 ? captured_[at(a, b, to, from)] / all : 0;
}

double Similarity::needle_share(int b, int to) const {
  const double all = needle_mass();
  return all > 0 ? needle_[static_cast<std::size_t>(b * shape_.kv_heads + to)] / all : 0;
}

}  // namespace glimpse::calibrate
