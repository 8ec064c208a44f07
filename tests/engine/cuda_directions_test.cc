// The directions of several layers' keys that a GPU finds, beside those of the host's whole decomposition.
#include <random>

#include "glimpse/attention/cuda/directions.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/cuda/factors.h"
#include "glimpse/kv/index/low_rank_keys.h"
#include "tests/engine/cuda_support.h"

namespace glimpse::attention::cuda {
namespace {

/// Keys [tokens, width] whose values fall along random directions.
std::vector<float> keys_of(int tokens, int width, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> mix(size(width) * size(width)), keys(size(tokens) * size(width), 0.0F);
  for (float& x : mix) x = normal(random);
  for (std::size_t t = 0; t < size(tokens); ++t) {
    for (std::size_t k = 0; k < size(width); ++k) {
      const float weight = normal(random) / std::sqrt(1.0F + static_cast<float>(k));
      for (std::size_t i = 0; i < size(width); ++i) keys[t * size(width) + i] += weight * mix[k * size(width) + i];
    }
  }
  return keys;
}

/// What directions V [width, rank] at right angles leave of X^T X.
double left_of(const std::vector<double>& gram, std::size_t width, const std::vector<float>& directions,
               std::size_t rank) {
  double left = 0;
  for (std::size_t i = 0; i < width; ++i) left += gram[i * width + i];
  for (std::size_t k = 0; k < rank; ++k) {
    for (std::size_t i = 0; i < width; ++i) {
      double row = 0;
      for (std::size_t j = 0; j < width; ++j)
        row += gram[i * width + j] * static_cast<double>(directions[j * rank + k]);
      left -= static_cast<double>(directions[i * rank + k]) * row;
    }
  }
  return left;
}

class CudaDirections : public engine::Cuda {};

TEST_F(CudaDirections, OfAllLayers) {
  struct Case {
    int layers, width;
    std::vector<int> ranks;
  };
  // Wide keys go to the device, narrow ones and those of many directions to the threads.
  for (const Case& of :
       {Case{3, 448, {150, 40, 1}}, Case{2, 300, {30, 25}}, Case{2, 96, {24, 96}}, Case{1, 300, {290}}}) {
    SCOPED_TRACE(of.width);
    std::mt19937 random(static_cast<std::uint32_t>(of.width));
    kernels::cuda::Stream stream(0);
    const auto one_after_the_other = [](std::size_t count, const std::function<void(std::size_t)>& work) {
      for (std::size_t i = 0; i < count; ++i) work(i);
    };
    const int most = *std::max_element(of.ranks.begin(), of.ranks.end());
    Directions found(stream, one_after_the_other, {.layers = of.layers, .width = of.width, .rank = most});
    ASSERT_GE(found.at_once(), of.layers);
    found.clear();
    const std::size_t square = size(of.width) * size(of.width);
    std::vector<std::vector<double>> grams;
    for (int layer = 0; layer < of.layers; ++layer) {
      constexpr int kTokens = 500;
      const std::vector<float> keys = keys_of(kTokens, of.width, random);
      const kernels::cuda::Array<float> rows(stream, keys), parts(stream, kernels::cuda::gram_floats(of.width));
      kernels::cuda::gram(stream, {rows.constant(), kTokens, of.width, parts.pointer(), found.matrix(layer)});
      std::vector<double>& gram = grams.emplace_back(square, 0.0);
      for (std::size_t t = 0; t < kTokens; ++t) {
        const float* const row = keys.data() + t * size(of.width);
        for (std::size_t i = 0; i < size(of.width); ++i) {
          for (std::size_t j = 0; j < size(of.width); ++j) {
            gram[i * size(of.width) + j] += static_cast<double>(row[i]) * static_cast<double>(row[j]);
          }
        }
      }
      stream.synchronize();
    }
    const std::vector<std::vector<float>> directions = found.find(of.ranks);
    ASSERT_EQ(directions.size(), of.ranks.size());
    for (std::size_t i = 0; i < directions.size(); ++i) {
      SCOPED_TRACE(of.ranks[i]);
      const std::size_t rank = size(of.ranks[i]);
      ASSERT_EQ(directions[i].size(), size(of.width) * rank);
      double trace = 0;
      for (std::size_t j = 0; j < size(of.width); ++j) trace += grams[i][j * size(of.width) + j];
      const std::vector<float> best = kv::LowRankKeys::directions(grams[i], size(of.width), of.ranks[i]);
      const double least = left_of(grams[i], size(of.width), best, rank);
      EXPECT_LE(left_of(grams[i], size(of.width), directions[i], rank), 1.001 * least + 1e-5 * trace);
      for (std::size_t a = 0; a < rank; ++a) {
        for (std::size_t b = 0; b <= a; ++b) {
          double angle = 0;
          for (std::size_t j = 0; j < size(of.width); ++j) {
            angle +=
                static_cast<double>(directions[i][j * rank + a]) * static_cast<double>(directions[i][j * rank + b]);
          }
          ASSERT_NEAR(angle, a == b ? 1 : 0, 1e-5);
        }
      }
    }
  }
}

}  // namespace
}  // namespace glimpse::attention::cuda
