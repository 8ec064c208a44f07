// Plans that would read or write out of bounds, or attend to something else than they say: refused before anything
// runs, by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "glimpse/base/error.h"
#include "tests/engine/support.h"

namespace glimpse::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// One engine for all: nothing here runs long.
Engine& engine() {
  static Engine shared(options_for(reference::test_model("llama")));
  return shared;
}

void expect_refused(const plan::Plan& plan, const char* says) {
  EXPECT_THAT([&] { engine().open(plan); }, ThrowsMessage<UserError>(HasSubstr(says)));
}

TEST(UnsoundPlans, AnotherHeadDimensionIsRefused) {
  for (const char* policy : {"quest", "razor", "clusterkv"}) {
    plan::Plan plan = make(engine(), policy, budget("64"));
    plan.shape.head_dim /= 2;
    expect_refused(plan, "heads of 16 values");
  }
}

}  // namespace
}  // namespace glimpse::engine
