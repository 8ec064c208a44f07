// What the host reads of a pass in place of its rows, against plain loops.
#include "glimpse/kernels/cuda/readings.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "device_bed.h"
#include "tests/support/reference_draw.h"

namespace glimpse::kernels::cuda::test {
namespace {

class Readings : public CudaTest {
 protected:
  std::vector<float> normals(std::size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& x : values) x = normal(random_);
    return values;
  }
  /// [rows, count], of each row in ascending places.
  std::vector<Standing> largest_of(const std::vector<float>& values, int rows, int count) {
    const Array<float> there(*stream_, values);
    const Array<Standing> out(*stream_, static_cast<std::size_t>(rows * count));
    largest(*stream_, {there.constant(), out.pointer(), rows, static_cast<int>(values.size()) / rows, count});
    std::vector<Standing> got = out.values();
    for (auto row = got.begin(); row != got.end(); row += count) {
      std::sort(row, row + count, [](const Standing& a, const Standing& b) { return a.at < b.at; });
    }
    return got;
  }
  static std::vector<std::int32_t> places(const std::vector<float>& values, std::size_t first, std::size_t width,
                                          std::size_t count) {
    std::vector<std::int32_t> order(width);
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](std::int32_t i) { return values[first + static_cast<std::size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return value(a) > value(b); });
    order.resize(count);
    std::sort(order.begin(), order.end());
    return order;
  }

  std::mt19937 random_{5};
};

TEST_F(Readings, LargestValuesOfEachRow) {
  for (const int width : {128, 200, 1023, 49152, 128256, 151936}) {
    for (const int count : {1, 2, 40, 128}) {
      for (const bool coarse : {false, true}) {  // many equal ones
        SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(width) + (coarse ? ", coarse" : ""));
        std::vector<float> values = normals(3 * static_cast<std::size_t>(width));
        if (coarse) {
          for (float& x : values) x = std::min(std::round(x), 2.0F);
        }
        const std::vector<Standing> got = largest_of(values, 3, count);
        for (std::size_t row = 0; row < 3; ++row) {
          const std::size_t first = row * static_cast<std::size_t>(width);
          const auto want = places(values, first, static_cast<std::size_t>(width), static_cast<std::size_t>(count));
          for (std::size_t i = 0; i < want.size(); ++i) {
            const Standing& one = got[row * want.size() + i];
            ASSERT_EQ(one.at, want[i]) << "row " << row << ", " << i;
            ASSERT_EQ(one.value, values[first + static_cast<std::size_t>(want[i])]);
          }
        }
      }
    }
  }
}

TEST_F(Readings, RowsThatAreNotFiniteHaveNoLargest) {
  constexpr std::size_t kWidth = 5000;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    for (const int count : {1, 40}) {
      std::vector<float> values = normals(3 * kWidth);
      values[kWidth + 4321] = bad;
      const std::vector<Standing> got = largest_of(values, 3, count);
      const auto per = static_cast<std::size_t>(count);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].at < 0, i / per == 1) << i;
    }
  }
}

TEST_F(Readings, TokensThatRowsDraw) {
  std::uniform_real_distribution<double> uniform(0, 1);
  int near = 0, compared = 0;
  for (const int count : {1, 2, 40, 128}) {
    for (int step = 0; step < 20; ++step) {
      constexpr std::size_t kRows = 33;
      const auto each = static_cast<std::size_t>(count);
      std::vector<Standing> largest(kRows * each);
      std::vector<Draw> draws(kRows);
      std::normal_distribution<float> normal(0, 3);
      for (std::size_t i = 0; i < largest.size(); ++i) {
        const float value = normal(random_);
        largest[i] = {static_cast<std::int32_t>(i % each * 7), step % 4 == 3 ? std::round(value) : value};
      }
      for (Draw& each_draw : draws) {
        const auto pick = [&](auto a, auto b, auto c) { return std::array{a, b, c}[random_() % 3]; };
        each_draw = {pick(0.0F, 0.7F, 1.5F), pick(0, 3, 40), pick(1.0F, 0.95F, 0.2F), pick(0.0F, 0.05F, 0.3F),
                     uniform(random_)};
      }
      largest[5 * each].at = -1;
      const Array<Standing> there(*stream_, largest), out(*stream_, kRows);
      const Array<Draw> how(*stream_, draws);
      draw(*stream_, {there.constant(), how.constant(), out.pointer(), kRows, count});
      const std::vector<Standing> got = out.values();
      for (std::size_t row = 0; row < kRows; ++row) {
        if (row == 5) {
          EXPECT_EQ(got[row].at, -1);
          continue;
        }
        std::vector<std::pair<std::int32_t, float>> logits;
        for (std::size_t i = 0; i < each; ++i) {
          logits.emplace_back(largest[row * each + i].at, largest[row * each + i].value);
        }
        const reference::Drawn want = reference::drawn(logits, draws[row]);
        if (want.nearest < 1e-5) {
          ++near;
          continue;
        }
        ++compared;
        ASSERT_EQ(got[row].at, want.token) << count << " values, row " << row;
        EXPECT_EQ(got[row].value, largest[row * each + static_cast<std::size_t>(want.token / 7)].value);
      }
    }
  }
  EXPECT_LT(near, compared / 20);
}

TEST_F(Readings, ChangeIsOneMinusTheCosine) {
  for (const int width : {8, 72, 576, 4096}) {
    SCOPED_TRACE(width);
    const auto size = static_cast<std::size_t>(width);
    std::vector<float> x = normals(3 * size), delta = normals(3 * size);
    std::fill_n(x.begin() + static_cast<std::ptrdiff_t>(size), size, 0.0F);
    const Array<float> there(*stream_, x), added(*stream_, delta), out(*stream_, 3);
    change(*stream_, {there.constant(), added.constant(), out.pointer(), 3, width});
    const std::vector<float> got = out.values();
    for (std::size_t row = 0; row < 3; ++row) {
      double xx = 0, xy = 0, yy = 0;
      for (std::size_t i = row * size; i < (row + 1) * size; ++i) {
        const double a = x[i], b = static_cast<double>(x[i]) + delta[i];
        xx += a * a;
        xy += a * b;
        yy += b * b;
      }
      EXPECT_NEAR(got[row], row == 1 ? 0 : 1 - xy / std::sqrt(xx * yy), 1e-5);
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
