#include "glimpse/base/suggest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>

namespace glimpse {
namespace {

constexpr std::array<std::string_view, 3> kPolicies{"full", "streaming", "tidal"};

TEST(Suggest, NearestByEditDistance) {
  EXPECT_EQ(nearest_name("tidl", kPolicies), "tidal");
  EXPECT_EQ(nearest_name("tidall", kPolicies), "tidal");
  EXPECT_EQ(nearest_name("streeming", kPolicies), "streaming");
  EXPECT_EQ(nearest_name("ful", kPolicies), "full");
  EXPECT_EQ(nearest_name("full", kPolicies), "full");
}

TEST(Suggest, NothingNear) {
  EXPECT_EQ(nearest_name("kascade", kPolicies), "");
  EXPECT_EQ(nearest_name("", kPolicies), "");
  EXPECT_EQ(nearest_name("tidal", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), kPolicies), "");
}

TEST(Suggest, MessageNamesTheValueTheHintAndWhatIsKnown) {
  EXPECT_THAT(unknown_name("policy", "tidl", kPolicies),
              testing::AllOf(testing::HasSubstr("unknown policy 'tidl'"), testing::HasSubstr("did you mean 'tidal'?"),
                             testing::HasSubstr("full, streaming, tidal")));
  EXPECT_THAT(unknown_name("policy", "zzz", kPolicies), testing::Not(testing::HasSubstr("did you mean")));
}

}  // namespace
}  // namespace glimpse
