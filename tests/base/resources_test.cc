#include "glimpse/base/resources.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "glimpse/base/error.h"
#include "glimpse/base/sanitizers.h"

namespace glimpse {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(AbortTrap, SaysWhatMemoryWasAskedFor) {
  const AbortTrap trap("the outer thing");
  {
    const AbortTrap inner("the inner thing");
    // As ggml says it: a file, a line, and the assertion.
    EXPECT_THAT([] { AbortTrap::aborting("ggml.c:1: GGML_ASSERT(ctx->mem_buffer != NULL) failed"); },
                ThrowsMessage<UserError>(HasSubstr("no memory for the inner thing")));
  }
  EXPECT_THAT([] { AbortTrap::aborting("ggml.c:418: fatal error"); },
              ThrowsMessage<UserError>(HasSubstr("no memory for the outer thing")));
  EXPECT_THAT([] { AbortTrap::aborting("ggml.c:7: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed"); },
              ThrowsMessage<InternalError>(HasSubstr("ggml_can_mul_mat")));
}

TEST(AbortTrap, HoldsForItsThreadAlone) {
  const AbortTrap trap("this thread");
  std::thread([] { EXPECT_NO_THROW(AbortTrap::aborting("ggml.c:418: fatal error")); }).join();
  EXPECT_THROW(AbortTrap::aborting("ggml.c:418: fatal error"), UserError);
}

TEST(AbortTrap, ThatIsGoneDoesNothing) {
  { const AbortTrap trap("something"); }
  EXPECT_NO_THROW(AbortTrap::aborting("ggml.c:418: fatal error"));
}

TEST(RequireHeap, RefusesWhatCannotBeAllocated) {
  if (!kSanitized) {  // a sanitizer ends the process
    EXPECT_THAT([] { require_heap(std::size_t{1} << 60, "a test"); },
                ThrowsMessage<UserError>(HasSubstr("no memory for a test")));
  }
  EXPECT_NO_THROW(require_heap(4096, "a test"));
}

TEST(RequireThreads, TakesNoneAndSome) {
  EXPECT_NO_THROW(require_threads(0));
  EXPECT_NO_THROW(require_threads(3));
}

}  // namespace
}  // namespace glimpse
