// What is counted of a row, against sums by hand.
#include "glimpse/attention/row_reads.h"

#include <gtest/gtest.h>

#include <array>

#include "glimpse/policies/policy.h"

namespace glimpse::attention {
namespace {

using kernels::kEverything;
using kernels::Read;

constexpr std::int64_t kTokens = 100;

class Counted : public ::testing::Test {
 protected:
  Counted() {
    rows_.program = &program_;
    rows_.position = kTokens - 1;
  }
  /// Rows of K that heads of the row read which read alike, and whether the step is sparse then.
  std::pair<std::int64_t, bool> count(const HeadReads& heads) {
    ReadCounters counters;
    RowReads reads(rows_, counts_.data(), counters);
    slots_ = reads.add(heads);
    reads.end();
    EXPECT_EQ(counters.k_rows, counters.v_rows);
    EXPECT_EQ(counters.dense_k_rows, 4 * 3 * kTokens);
    EXPECT_EQ(counters.dense_v_rows, 4 * 3 * kTokens);
    EXPECT_EQ(counters.sparse_steps + counters.dense_steps, 1);
    return {counters.k_rows, counters.sparse_steps == 1};
  }
  static Read window(std::int32_t sink, std::int32_t local) {
    Read read;
    read.kind = Read::Kind::window;
    read.sink = sink;
    read.local = local;
    return read;
  }
  static Read set(std::int32_t first, bool per_query) {
    Read read;
    read.kind = Read::Kind::sets;
    read.set = first;
    read.per_query = per_query ? 1 : 0;
    return read;
  }

  Program program_{policies::make_plan("full", {"llama", "", 4, 6, 3, 32, 4096}, {})};
  SequenceRows rows_;
  std::array<std::int32_t, 7> counts_{30, kEverything, 10, kEverything, kEverything, 20, 5};
  std::int64_t slots_ = 0;  ///< of each head, as add() said
};

using Counts = std::pair<std::int64_t, bool>;

TEST_F(Counted, EverythingIsWhatAHeadHolds) {
  EXPECT_EQ(count({Read{}, kTokens, 2}), Counts(200, false));
  EXPECT_EQ(count({Read{}, 60}), Counts(60, true));  // it has forgotten some
  EXPECT_EQ(slots_, 60);
}

TEST_F(Counted, AWindowHasItsMeanTokenBesides) {
  EXPECT_EQ(count({window(4, 20), kTokens, 3}), Counts(72, true));
  EXPECT_EQ(count({window(4, 20), kTokens, 3, true}), Counts(75, true));
  EXPECT_EQ(slots_, 24);
  EXPECT_EQ(count({window(4, 20), 10}), Counts(10, true));           // less than the window is left
  EXPECT_EQ(count({Read{}, kTokens, 1, true}), Counts(100, false));  // it covers all: nothing was lost
}

TEST_F(Counted, ASetIsAsLongAsItsLists) {
  EXPECT_EQ(count({set(0, false), kTokens, 2}), Counts(60, true));
  EXPECT_EQ(count({set(1, false), kTokens, 2}), Counts(200, false));
  EXPECT_EQ(count({set(2, true), kTokens}), Counts(110, true));   // 10 and all
  EXPECT_EQ(count({set(5, true), kTokens}), Counts(25, true));    // 20 and 5
  EXPECT_EQ(count({set(3, true), kTokens}), Counts(100, false));  // all and all: both heads read them together
}

}  // namespace
}  // namespace glimpse::attention
