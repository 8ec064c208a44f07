#include "fixture.h"

namespace glimpse::kernels::test {
namespace {

class SelectTest : public KernelTest {
 protected:
  void expect_reference(const std::vector<float>& scores, std::size_t k) {
    const std::size_t room = std::min(k, scores.size());
    Guarded<std::int32_t> got(room);
    std::vector<std::int32_t> want(room);
    Guarded<std::byte> workspace(select_workspace(scores.size()));
    const std::size_t written = select_top_k(scores, k, got.span(), workspace.span());
    want.resize(ref::select_top_k(scores, k, want));
    ASSERT_EQ(written, want.size());
    for (std::size_t i = 0; i < written; ++i) ASSERT_EQ(got[i], want[i]) << "at " << i;
    EXPECT_TRUE(got.guards_intact());
    EXPECT_TRUE(workspace.guards_intact());
  }

  std::size_t mass(const std::vector<float>& probabilities, double wanted) {
    Guarded<std::byte> workspace(select_workspace(probabilities.size()));
    const std::size_t count = count_for_mass(probabilities, wanted, workspace.span());
    EXPECT_TRUE(workspace.guards_intact());
    return count;
  }
};

TEST_P(SelectTest, EqualsStableSort) {
  for (const std::size_t count : {0, 1, 2, 15, 16, 17, 100, 1000, 4097}) {
    auto scores = normals(count);
    for (const std::size_t k : {std::size_t{0}, std::size_t{1}, std::size_t{2}, count / 3, count, count + 5}) {
      SCOPED_TRACE(std::to_string(k) + " of " + std::to_string(count));
      expect_reference(scores, k);
    }
    // Coarse values: many ties. Then holes.
    for (float& s : scores) s = std::round(2 * s) / 2;
    for (const std::size_t k : {std::size_t{1}, count / 5, count / 2, count}) expect_reference(scores, k);
    for (float& s : scores) {
      const int kind = below(6);
      if (kind == 0) s = -kInfinity;
      if (kind == 1) s = kNan;
      if (kind == 2) s = -0.0F;
      if (kind == 3) s = 0.0F;
    }
    for (const std::size_t k : {std::size_t{1}, count / 5, count / 2, count}) {
      SCOPED_TRACE("holes, " + std::to_string(k) + " of " + std::to_string(count));
      expect_reference(scores, k);
    }
  }
}

TEST_P(SelectTest, ExtremesAndEqualScores) {
  const std::vector<float> extremes{kInfinity,
                                    -kInfinity,
                                    std::numeric_limits<float>::max(),
                                    kNan,
                                    std::numeric_limits<float>::lowest(),
                                    std::numeric_limits<float>::denorm_min(),
                                    -std::numeric_limits<float>::denorm_min(),
                                    0.0F,
                                    -0.0F,
                                    kInfinity,
                                    -kNan};
  for (std::size_t k = 0; k <= extremes.size(); ++k) expect_reference(extremes, k);
  for (const float value : {0.0F, 1.0F, -kInfinity, kNan}) {
    for (const std::size_t k : {1, 10, 99, 100, 200}) expect_reference(std::vector<float>(100, value), k);
  }
}

TEST_P(SelectTest, LongRowsOfNearlyEqualScores) {
  // All in one bin of the first digits.
  std::vector<float> scores(32768);
  for (float& s : scores) s = 1.0F + 1e-6F * static_cast<float>(below(50));
  for (const std::size_t k : {512, 2048}) expect_reference(scores, k);
  scores = normals(32768);
  for (const std::size_t k : {64, 512, 2048, 32000}) expect_reference(scores, k);
}

TEST_P(SelectTest, TooLittleRoomIsABug) {
  const auto scores = normals(10);
  std::vector<std::int32_t> out(3);
  std::vector<std::byte> workspace(select_workspace(10));
  EXPECT_ANY_THROW(select_top_k(scores, 4, out, workspace));
  EXPECT_ANY_THROW(select_top_k(scores, 2, out, std::span(workspace).first(20)));
}

TEST_P(SelectTest, CountForMass) {
  for (const std::size_t count : {1, 10, 1000, 5000}) {
    std::vector<float> p(count);
    double sum = 0;
    for (float& x : p) sum += x = std::exp(3 * normal());
    for (float& x : p) x = static_cast<float>(x / sum);
    std::vector<float> sorted = p;
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (const double wanted : {0.0, 0.1, 0.5, 0.9, 0.99, 0.9999}) {
      const std::size_t found = mass(p, wanted);
      EXPECT_EQ(found, ref::count_for_mass(p, wanted)) << wanted << " of " << count;
    }
    EXPECT_EQ(mass(p, 2.0), ref::count_for_mass(p, 2.0));
  }
  // Equal values, zeros and what is no probability.
  const std::vector<float> quarters{0.25F, 0.25F, 0.0F, 0.25F, 0.25F, kNan, -1.0F};
  for (const double wanted : {0.0, 0.2, 0.25, 0.26, 0.5, 0.75, 0.76, 1.0, 1.1}) {
    EXPECT_EQ(mass(quarters, wanted), ref::count_for_mass(quarters, wanted)) << wanted;
  }
  EXPECT_EQ(mass({}, 0.5), 0U);
  EXPECT_EQ(mass(quarters, std::numeric_limits<double>::quiet_NaN()), 0U);
}

INSTANTIATE_TEST_SUITE_P(Targets, SelectTest, testing::ValuesIn(machine_targets()), target_label);

}  // namespace
}  // namespace glimpse::kernels::test
