#include "fixture.h"

namespace glimpse::kernels::test {
namespace {

class PoolTest : public KernelTest {};

void expect_near(const Guarded<float>& got, const Guarded<float>& want, double relative) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    ASSERT_NEAR(got[i], want[i], relative * std::fabs(static_cast<double>(want[i])) + 1e-37) << "at " << i;
  }
  EXPECT_TRUE(got.guards_intact());
}

TEST_P(PoolTest, EqualsReference) {
  for (const int group : {1, 2, 3, 8}) {
    for (const std::size_t count : {0, 1, 7, 16, 1000, 1001}) {
      SCOPED_TRACE(std::to_string(group) + " x " + std::to_string(count));
      const std::size_t stride = count + 5;
      auto scores = normals(static_cast<std::size_t>(group) * stride, 5);
      std::vector<float> lse;
      for (int j = 0; j < group; ++j) {
        float* row = scores.data() + static_cast<std::size_t>(j) * stride;
        if (count > 2) row[count / 2] = -kInfinity;
        lse.push_back(ref::log_sum_exp({row, count}));
      }
      Guarded<float> want(count), got(count);
      ref::pool_mean_probability(scores.data(), stride, lse.data(), group, want.span());
      pool_mean_probability(scores.data(), stride, lse.data(), group, got.span());
      expect_near(got, want, 2e-6);
      ref::pool_max_probability(scores.data(), stride, lse.data(), group, want.span());
      pool_max_probability(scores.data(), stride, lse.data(), group, got.span());
      expect_near(got, want, 2e-6);
      ref::pool_max_score(scores.data(), stride, group, want.span());
      pool_max_score(scores.data(), stride, group, got.span());
      expect_near(got, want, 0);
      ref::pool_mean_score(scores.data(), stride, group, want.span());
      pool_mean_score(scores.data(), stride, group, got.span());
      for (std::size_t i = 0; i < count; ++i) {
        EXPECT_TRUE(want[i] == got[i] || std::fabs(got[i] - want[i]) <= 1e-5F) << "at " << i;
      }
    }
  }
}

TEST_P(PoolTest, ExponentialIsAccurate) {
  // Through pooling of one head with lse 0: exp of the score itself.
  std::vector<float> x;
  for (float at = -90; at < 20; at += 0.0371F) x.push_back(at);
  x.insert(x.end(), {-kInfinity, kNan, 0.0F, -0.0F, -200.0F, -87.29F});
  const float lse = 0;
  Guarded<float> got(x.size());
  pool_mean_probability(x.data(), x.size(), &lse, 1, got.span());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double want = std::exp(static_cast<double>(x[i]));
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(got[i]));
    } else if (x[i] < -87.3F) {
      EXPECT_EQ(got[i], 0);
    } else {
      EXPECT_NEAR(got[i], want, 3e-7 * want) << x[i];
    }
  }
  EXPECT_EQ(got[x.size() - 4], 1.0F);
}

TEST_P(PoolTest, WhereARangeIsCutDoesNotShow) {
  const auto scores = normals(2 * 100, 3);
  const std::vector<float> lse{4, 5};
  Guarded<float> whole(100), parts(100);
  pool_mean_probability(scores.data(), 100, lse.data(), 2, whole.span());
  pool_mean_probability(scores.data(), 100, lse.data(), 2, parts.span().first(37));
  pool_mean_probability(scores.data() + 37, 100, lse.data(), 2, parts.span().subspan(37));
  EXPECT_EQ(std::memcmp(whole.data(), parts.data(), 100 * sizeof(float)), 0);
}

TEST_P(PoolTest, LogSumExp) {
  for (const std::size_t count : {1, 3, 8, 17, 500, 4099}) {
    const auto scores = normals(count, 20);
    EXPECT_NEAR(log_sum_exp(scores), ref::log_sum_exp(scores), 1e-4) << count;
  }
  EXPECT_EQ(log_sum_exp({}), -kInfinity);
  EXPECT_EQ(log_sum_exp(std::vector<float>(9, -kInfinity)), -kInfinity);
  EXPECT_NEAR(log_sum_exp(std::vector<float>{-1e30F, 3.0F, -kInfinity}), 3.0F, 1e-6);
}

TEST_P(PoolTest, BlockMaxAndCountAbove) {
  for (const std::size_t count : {0, 1, 15, 16, 100, 1003}) {
    const auto scores = normals(count);
    for (const int block : {1, 3, 16, 64, 2000}) {
      const std::size_t blocks = (count + static_cast<std::size_t>(block) - 1) / static_cast<std::size_t>(block);
      Guarded<float> want(blocks), got(blocks);
      ref::block_max(scores, block, want.span());
      block_max(scores, block, got.span());
      expect_near(got, want, 0);
    }
    for (const float threshold : {-10.0F, 0.0F, 0.5F, 10.0F}) {
      EXPECT_EQ(count_above(scores, threshold), ref::count_above(scores, threshold));
    }
    const float own = count > 0 ? scores[count / 2] : 0.0F;
    EXPECT_EQ(count_above(scores, own), ref::count_above(scores, own));
  }
}

TEST_P(PoolTest, RunsTheForcedInstructionSet) {
  const std::string name = instruction_set();
  switch (GetParam()) {
    case HWY_AVX3:
      EXPECT_TRUE(name.starts_with("AVX-512"));
      EXPECT_EQ(vector_floats(), 16);
      break;
    case HWY_AVX2:
      EXPECT_EQ(name, "AVX2");
      EXPECT_EQ(vector_floats(), 8);
      break;
    case HWY_SSE4:
      EXPECT_EQ(name, "SSE4");
      break;
    default:
      EXPECT_TRUE(name == "scalar" || name == "portable");
      break;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, PoolTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
