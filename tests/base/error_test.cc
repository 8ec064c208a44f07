#include "glimpse/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace glimpse {
namespace {

TEST(Error, CheckPassesOnTruth) {
  EXPECT_NO_THROW(check(true, "never said"));
}

TEST(Error, FailedCheckNamesItselfAndThePlace) {
  try {
    check(false, "the list is sorted");
    FAIL() << "a failed check throws";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(),
                testing::AllOf(testing::HasSubstr("the list is sorted"), testing::HasSubstr("error_test.cc:")));
  }
}

TEST(Error, UserErrorShowsItsTextOnly) {
  EXPECT_STREQ(UserError("budget -1 is below 1").what(), "budget -1 is below 1");
}

TEST(Error, AUsersErrorIsNoBug) {
  EXPECT_FALSE((std::is_base_of_v<UserError, InternalError>));
  EXPECT_FALSE((std::is_base_of_v<InternalError, UserError>));
}

}  // namespace
}  // namespace glimpse
