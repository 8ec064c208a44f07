#include "glimpse/calibrate/anchors.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "glimpse/base/error.h"

namespace glimpse::calibrate {
namespace {

std::size_t index(int row, int columns, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column);
}

}  // namespace

double& Gains::at(int a, int b, int to, int from) {
  return gain[index(index(static_cast<int>(index(a, layers, b)), kv_heads, to), kv_heads, from)];
}

double Gains::at(int a, int b, int to, int from) const {
  return const_cast<Gains&>(*this).at(a, b, to, from);
}

std::vector<double> Gains::by_layer() const {
  std::vector<double> sums(index(layers, layers, 0));
  for (int a = 0; a < layers; ++a) {
    for (int b = a; b < layers; ++b) {
      for (int to = 0; to < kv_heads; ++to) {
        double most = at(a, b, to, a == b ? to : 0);
        for (int from = 1; a < b && from < kv_heads; ++from) most = std::max(most, at(a, b, to, from));
        sums[index(a, layers, b)] += most;
      }
    }
  }
  return sums;
}

Gains gains_of(const Similarity& similarity, const Similarity& capture, std::span<const double> importance,
               const GainOptions& options) {
  const plan::ModelShape& shape = similarity.shape();
  check(importance.size() == static_cast<std::size_t>(shape.layers), "an importance for each layer");
  const double all = std::accumulate(importance.begin(), importance.end(), 0.0);
  Gains gains{shape.layers, shape.kv_heads, {}};
  gains.gain.resize(index(shape.layers, shape.layers, 0) * index(shape.kv_heads, shape.kv_heads, 0));
  for (int a = 0; a < shape.layers; ++a) {
    for (int b = a; b < shape.layers; ++b) {
      const double weight = (all > 0 ? importance[static_cast<std::size_t>(b)] / all : 1.0 / shape.layers);
      for (int to = 0; to < shape.kv_heads; ++to) {
        for (int from = 0; from < shape.kv_heads; ++from) {
          const double captured = options.reads_all && a == b && to == from ? capture.needle_share(b, to)
                                                                            : capture.captured(a, b, to, from);
          gains.at(a, b, to, from) =
              weight * similarity.similarity(a, b, to, from) / shape.kv_heads + options.needles * captured;
        }
      }
    }
  }
  return gains;
}

std::vector<int> best_anchors(std::span<const double> by_layer, int layers, int count) {
  check(count >= 1 && count <= layers, "from one anchor to one for each layer");
  check(by_layer.size() == index(layers, layers, 0), "a value for each pair of layers");
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  // best[m, j]: the first j layers under m anchors. from[m, j]: where the last of them lies.
  const int ends = layers + 1;
  std::vector<double> best(index(count + 1, ends, 0), kNone);
  std::vector<int> from(best.size(), -1);
  best[0] = 0;
  for (int m = 1; m <= count; ++m) {
    for (int i = m - 1; i < layers; ++i) {
      double sum = best[index(m - 1, ends, i)];
      if (sum == kNone) continue;
      for (int j = i + 1; j <= layers; ++j) {
        sum += by_layer[index(i, layers, j - 1)];
        if (sum <= best[index(m, ends, j)]) continue;
        best[index(m, ends, j)] = sum;
        from[index(m, ends, j)] = i;
      }
    }
  }
  std::vector<int> anchors;
  for (int m = count, j = layers; m > 0; --m) {
    j = from[index(m, ends, j)];
    anchors.push_back(j);
  }
  std::reverse(anchors.begin(), anchors.end());
  return anchors;
}

double total_gain(std::span<const double> by_layer, int layers, std::span<const int> anchors) {
  double sum = 0;
  std::size_t last = 0;
  for (int layer = 0; layer < layers; ++layer) {
    while (last + 1 < anchors.size() && anchors[last + 1] <= layer) ++last;
    sum += by_layer[index(anchors[last], layers, layer)];
  }
  return sum;
}

std::vector<double> objectives(std::span<const double> by_layer, int layers,
                               const std::vector<std::vector<int>>& anchors) {
  std::vector<int> every(static_cast<std::size_t>(layers));
  std::iota(every.begin(), every.end(), 0);
  const double all = total_gain(by_layer, layers, every);
  std::vector<double> shares;
  for (const std::vector<int>& each : anchors) {
    shares.push_back(all > 0 ? std::clamp(total_gain(by_layer, layers, each) / all, 0.0, 1.0) : 1.0);
  }
  return shares;
}

std::vector<int> head_map(const Gains& gains, std::span<const int> anchors) {
  std::vector<int> map;
  std::size_t last = 0;
  for (int layer = 0; layer < gains.layers; ++layer) {
    while (last + 1 < anchors.size() && anchors[last + 1] <= layer) ++last;
    const int anchor = anchors[last];
    for (int to = 0; to < gains.kv_heads; ++to) {
      int best = anchor == layer ? to : 0;
      for (int from = 1; anchor < layer && from < gains.kv_heads; ++from) {
        if (gains.at(anchor, layer, to, from) > gains.at(anchor, layer, to, best)) best = from;
      }
      map.push_back(best);
    }
  }
  return map;
}

}  // namespace glimpse::calibrate
