#include "glimpse/kv/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "cache_rows.h"
#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

using kernels::kPageTokens;
using kernels::PageId;

CacheShape small_shape(std::int64_t capacity, KvType type = KvType::bf16) {
  CacheShape shape;
  shape.layers = 2;
  shape.kv_heads = 3;
  shape.format = {type, 16};
  shape.capacity_tokens = capacity;
  return shape;
}

std::vector<std::int32_t> range(std::int32_t first, std::int32_t end) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(end - first));
  std::iota(values.begin(), values.end(), first);
  return values;
}

std::vector<std::int32_t> positions_of(const kernels::HeadView& view) {
  if (view.positions == nullptr) return range(0, view.slots);
  return {view.positions, view.positions + view.slots};
}

TEST(Cache, PagesOfEveryTypeAndCapacityInWholeRuns) {
  const std::vector<std::pair<KvType, std::size_t>> cases{{KvType::f32, 16 * 16 * 4},
                                                          {KvType::f16, 16 * 16 * 2},
                                                          {KvType::bf16, 16 * 16 * 2},
                                                          {KvType::q8_0, 16 * 16 + 64}};
  for (const auto& [type, page_bytes] : cases) {
    Cache cache(small_shape(257, type));
    EXPECT_EQ(cache.shape().format.page_bytes(), page_bytes) << name(type);
    EXPECT_EQ(cache.usage().pages_total, 2u * 6 * 16);
    EXPECT_EQ(cache.usage().pages_free, 2u * 6 * 16);
    EXPECT_EQ(cache.usage().bytes_reserved, 2u * 2 * 6 * 16 * page_bytes);
    const SequenceId sequence = cache.create();
    extend_with_rows(cache, sequence, 40, 1);
    for (std::int32_t slot = 0; slot < 40; ++slot) {
      EXPECT_TRUE(row_is(cache, sequence, {1, 1, 2, slot}, slot)) << name(type) << " slot " << slot;
    }
  }
}

TEST(Cache, StorageFollowsTokenRangesOverAllHeadsOfALayer) {
  Cache cache(small_shape(1024));
  const SequenceId sequence = cache.create();
  cache.extend(sequence, 600);  // three runs a head
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 3; ++head) {
      const auto view = cache.view(sequence, layer, head);
      for (int page = 0; page < 38; ++page) {
        const int run = page / kRunPages;
        const int expected = ((layer * 3 + run) * 3 + head) * kRunPages + page % kRunPages;
        EXPECT_EQ(view.pages[page], static_cast<PageId>(expected)) << layer << " " << head << " " << page;
      }
    }
  }
}

TEST(Cache, OneRunIsTakenAtATimeAndViewsStayPut) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  cache.extend(sequence, 1);
  EXPECT_EQ(cache.usage().pages_free, 6u * 16);
  const PageId* pages = cache.view(sequence, 1, 1).pages;
  for (int i = 1; i < 256; ++i) cache.extend(sequence, 1);
  EXPECT_EQ(cache.view(sequence, 1, 1).pages, pages);
  EXPECT_EQ(cache.usage().pages_free, 6u * 16);
  cache.extend(sequence, 1);
  EXPECT_EQ(cache.usage().pages_free, 0u);
}

TEST(Cache, FullPoolRefusesAndChangesNothing) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  extend_with_rows(cache, sequence, 500, 3);
  try {
    cache.extend(sequence, 13);
    FAIL() << "13 more tokens do not fit";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("13 more"), testing::HasSubstr("room for 12"),
                                             testing::HasSubstr("512"), testing::HasSubstr("-c")));
  }
  EXPECT_EQ(cache.length(sequence), 500);
  EXPECT_EQ(cache.view(sequence, 0, 0).slots, 500);
  cache.extend(sequence, 12);
  for (std::int32_t slot = 0; slot < 500; ++slot) EXPECT_TRUE(row_is(cache, sequence, {3, 1, 0, slot}, slot));
  EXPECT_THROW(cache.extend(sequence, std::int64_t{1} << 40), UserError);
}

TEST(Cache, LastPagesAreHandedOutOneByOne) {
  Cache cache(small_shape(512));  // two runs a head
  const SequenceId first = cache.create();
  cache.extend(first, 256);
  const SequenceId second = cache.create();
  cache.extend(second, 16);
  EXPECT_EQ(cache.usage().pages_free, 0u);  // the second one's reserve is not for others
  EXPECT_THROW(cache.extend(cache.create(), 1), UserError);

  // One page of each head comes back, none of them a whole run.
  for (int head = 0; head < 3; ++head) {
    cache.free_tokens(first, 0, head, range(16 * head, 16 * head + 16));
    cache.free_tokens(first, 1, head, range(240, 256));
  }
  EXPECT_EQ(cache.usage().pages_free, 6u);
  const SequenceId third = cache.create();
  extend_with_rows(cache, third, 16, 9);
  EXPECT_EQ(cache.usage().pages_free, 0u);
  EXPECT_TRUE(row_is(cache, third, {9, 1, 2, 15}, 15));
  EXPECT_THROW(cache.extend(third, 1), UserError);
}

TEST(Cache, ForkSharesPagesUntilEitherSideWrites) {
  Cache cache(small_shape(2048));
  const SequenceId source = cache.create();
  extend_with_rows(cache, source, 100, 1);
  const std::size_t free_before = cache.usage().pages_free;
  const SequenceId fork = cache.fork(source);
  EXPECT_EQ(cache.usage().pages_free, free_before);
  EXPECT_EQ(cache.length(fork), 100);

  extend_with_rows(cache, fork, 4, 2);
  extend_with_rows(cache, source, 4, 3);
  const auto source_view = cache.view(source, 1, 1);
  const auto fork_view = cache.view(fork, 1, 1);
  for (int page = 0; page < 6; ++page) EXPECT_EQ(source_view.pages[page], fork_view.pages[page]);
  EXPECT_NE(source_view.pages[6], fork_view.pages[6]);
  for (std::int32_t slot = 0; slot < 100; ++slot) {
    EXPECT_TRUE(row_is(cache, source, {1, 1, 1, slot}, slot));
    EXPECT_TRUE(row_is(cache, fork, {1, 1, 1, slot}, slot));
  }
  for (std::int32_t slot = 100; slot < 104; ++slot) {
    EXPECT_TRUE(row_is(cache, source, {3, 1, 1, slot}, slot));
    EXPECT_TRUE(row_is(cache, fork, {2, 1, 1, slot}, slot));
  }
  cache.destroy(source);
  EXPECT_TRUE(row_is(cache, fork, {1, 0, 0, 0}, 0));
  cache.destroy(fork);
  EXPECT_EQ(cache.usage().pages_free, cache.usage().pages_total);
}

TEST(Cache, LastReaderWritesInPlace) {
  Cache cache(small_shape(2048));
  const SequenceId source = cache.create();
  cache.extend(source, 10);
  const SequenceId fork = cache.fork(source);
  const PageId page = cache.view(fork, 0, 0).pages[0];
  cache.destroy(source);
  cache.extend(fork, 1);
  EXPECT_EQ(cache.view(fork, 0, 0).pages[0], page);
}

TEST(Cache, PagesForkedBetweenMarkAndRestoreAreNotWrittenAgain) {
  Cache cache(small_shape(2048));
  const SequenceId source = cache.create();
  extend_with_rows(cache, source, 100, 1);
  const Mark mark = cache.mark(source);
  extend_with_rows(cache, source, 60, 2);
  const SequenceId fork = cache.fork(source);
  cache.restore(mark);
  extend_with_rows(cache, source, 60, 3);
  for (std::int32_t slot = 100; slot < 160; ++slot) {
    EXPECT_TRUE(row_is(cache, fork, {2, 0, 2, slot}, slot)) << slot;
    EXPECT_TRUE(row_is(cache, source, {3, 0, 2, slot}, slot)) << slot;
  }
}

TEST(Cache, FreedSlotsKeepPositionsAndEmptyPagesGo) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  extend_with_rows(cache, sequence, 40, 1);
  EXPECT_EQ(cache.view(sequence, 0, 1).positions, nullptr);
  const std::size_t free_before = cache.usage().pages_free;

  cache.free_tokens(sequence, 0, 1, range(16, 31));
  EXPECT_EQ(cache.live_tokens(sequence, 0, 1), 25);
  EXPECT_EQ(cache.view(sequence, 0, 1).slots, 40);
  EXPECT_EQ(cache.view(sequence, 0, 0).positions, nullptr);
  EXPECT_EQ(cache.usage().pages_free, free_before);

  cache.free_tokens(sequence, 0, 1, range(31, 32));
  EXPECT_EQ(cache.usage().pages_free, free_before + 1);
  auto expected = range(0, 16);
  const auto tail = range(32, 40);
  expected.insert(expected.end(), tail.begin(), tail.end());
  EXPECT_EQ(positions_of(cache.view(sequence, 0, 1)), expected);

  extend_with_rows(cache, sequence, 2, 2);
  expected.push_back(40);
  expected.push_back(41);
  EXPECT_EQ(positions_of(cache.view(sequence, 0, 1)), expected);
  EXPECT_TRUE(row_is(cache, sequence, {2, 0, 1, 41}, 25));
  EXPECT_EQ(cache.view(sequence, 0, 0).slots, 42);
  EXPECT_EQ(cache.length(sequence), 42);
}

TEST(Cache, EveryTokenOfAHeadMayGo) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  cache.extend(sequence, 36);
  cache.free_tokens(sequence, 1, 0, range(0, 36));
  EXPECT_EQ(cache.live_tokens(sequence, 1, 0), 0);
  EXPECT_EQ(positions_of(cache.view(sequence, 1, 0)), std::vector<std::int32_t>(4, -1));  // the page being filled stays
  cache.extend(sequence, 12);
  cache.free_tokens(sequence, 1, 0, range(36, 48));
  EXPECT_EQ(cache.view(sequence, 1, 0).slots, 0);
  cache.extend(sequence, 1);
  EXPECT_EQ(positions_of(cache.view(sequence, 1, 0)), std::vector<std::int32_t>{48});
}

TEST(Cache, FreeingInAForkLeavesTheSource) {
  Cache cache(small_shape(1024));
  const SequenceId source = cache.create();
  extend_with_rows(cache, source, 64, 1);
  cache.free_tokens(source, 0, 0, range(5, 6));
  const SequenceId fork = cache.fork(source);
  const std::size_t free_before = cache.usage().pages_free;
  cache.free_tokens(fork, 0, 0, range(16, 48));
  EXPECT_EQ(cache.usage().pages_free, free_before);  // the source still reads them
  EXPECT_EQ(cache.view(fork, 0, 0).slots, 32);
  EXPECT_EQ(cache.live_tokens(source, 0, 0), 63);
  EXPECT_EQ(cache.view(source, 0, 0).slots, 64);
  EXPECT_TRUE(row_is(cache, source, {1, 0, 0, 20}, 20));
  EXPECT_TRUE(row_is(cache, fork, {1, 0, 0, 50}, 18));
}

TEST(Cache, LayoutStaysWhileTokensLieOnPagesThatAreThere) {
  Cache cache(small_shape(4096));
  const SequenceId sequence = cache.create();
  extend_with_rows(cache, sequence, 20, 1);
  const std::uint64_t layout = cache.layout(sequence), changes = cache.changes();
  const std::vector<PageId> pages(cache.view(sequence, 1, 2).pages, cache.view(sequence, 1, 2).pages + 2);
  for (std::int32_t length = 21; length <= 2 * kPageTokens; ++length) {
    const Mark mark = cache.mark(sequence);
    cache.extend(sequence, 1);
    cache.commit(mark);
    EXPECT_EQ(cache.layout(sequence), layout);
    EXPECT_EQ(cache.view(sequence, 1, 2).slots, length);
    EXPECT_EQ(cache.live_tokens(sequence, 0, 1), length);
    EXPECT_EQ(cache.pages_to_extend(sequence, 2 * kPageTokens - length), 0);
    EXPECT_TRUE(cache.holds_all(sequence));
  }
  EXPECT_EQ(std::vector<PageId>(cache.view(sequence, 1, 2).pages, cache.view(sequence, 1, 2).pages + 2), pages);
  cache.extend(sequence, 1);
  EXPECT_NE(cache.layout(sequence), layout);
  EXPECT_EQ(cache.changes(), changes);
  std::vector<std::int64_t> live;
  cache.live_tokens(sequence, live);
  EXPECT_THAT(live, testing::Each(2 * kPageTokens + 1));
  cache.free_tokens(sequence, 0, 1, range(3, 5));
  EXPECT_FALSE(cache.holds_all(sequence));
  EXPECT_EQ(cache.live_tokens(sequence, 0, 1), 2 * kPageTokens - 1);
}

TEST(Cache, TokensOnAPageThatAForkReadsGoToAnother) {
  Cache cache(small_shape(4096));
  const SequenceId sequence = cache.create();
  extend_with_rows(cache, sequence, 20, 1);
  cache.extend(sequence, 2);
  const std::uint64_t layout = cache.layout(sequence), changes = cache.changes();
  const SequenceId fork = cache.fork(sequence);
  EXPECT_EQ(cache.view(fork, 1, 2).slots, 22);
  EXPECT_EQ(cache.view(fork, 1, 2).pages[1], cache.view(sequence, 1, 2).pages[1]);
  EXPECT_EQ(cache.changes(), changes);
  cache.extend(sequence, 1);
  EXPECT_NE(cache.layout(sequence), layout);
  EXPECT_NE(cache.changes(), changes);
  EXPECT_EQ(cache.view(fork, 1, 2).slots, 22);
  EXPECT_NE(cache.view(fork, 1, 2).pages[1], cache.view(sequence, 1, 2).pages[1]);
  EXPECT_TRUE(row_is(cache, sequence, {1, 1, 2, 19}, 19));
  const Mark mark = cache.mark(sequence);
  cache.extend(sequence, 3);
  cache.restore(mark);
  EXPECT_EQ(cache.length(sequence), 23);
  EXPECT_EQ(cache.view(sequence, 1, 2).slots, 23);
  cache.truncate(sequence, 2);
  EXPECT_EQ(cache.view(sequence, 1, 2).slots, 21);
}

TEST(Cache, FreeingWhatIsNotThereIsABug) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  cache.extend(sequence, 8);
  EXPECT_THROW(cache.free_tokens(sequence, 0, 0, range(8, 9)), InternalError);
  EXPECT_THROW(cache.free_tokens(sequence, 0, 0, range(-1, 2)), InternalError);
  const std::vector<std::int32_t> descending{3, 2};
  EXPECT_THROW(cache.free_tokens(sequence, 0, 0, descending), InternalError);
  EXPECT_EQ(cache.live_tokens(sequence, 0, 0), 8);
  EXPECT_EQ(cache.view(sequence, 0, 0).positions, nullptr);
  cache.free_tokens(sequence, 0, 0, range(3, 4));
  EXPECT_THROW(cache.free_tokens(sequence, 0, 0, range(3, 4)), InternalError);
}

TEST(Cache, RestoreUndoesExtendAndFree) {
  Cache cache(small_shape(2048));
  const SequenceId sequence = cache.create();
  extend_with_rows(cache, sequence, 90, 1);
  cache.free_tokens(sequence, 0, 0, range(10, 12));
  const auto positions = positions_of(cache.view(sequence, 0, 0));
  const std::size_t free_before = cache.usage().pages_free;

  const Mark mark = cache.mark(sequence);
  extend_with_rows(cache, sequence, 300, 2);
  cache.free_tokens(sequence, 0, 0, range(16, 64));
  cache.free_tokens(sequence, 1, 2, range(0, 390));
  EXPECT_EQ(cache.view(sequence, 0, 0).slots, 390);  // the drop waits for the commit
  EXPECT_EQ(cache.live_tokens(sequence, 1, 2), 0);
  cache.restore(mark);

  EXPECT_EQ(cache.length(sequence), 90);
  EXPECT_EQ(cache.usage().pages_free, free_before);
  EXPECT_EQ(positions_of(cache.view(sequence, 0, 0)), positions);
  EXPECT_EQ(cache.view(sequence, 1, 2).positions, nullptr);
  EXPECT_EQ(cache.live_tokens(sequence, 1, 2), 90);
  for (std::int32_t slot = 0; slot < 90; ++slot) EXPECT_TRUE(row_is(cache, sequence, {1, 0, 0, slot}, slot));
}

TEST(Cache, OutermostCommitDropsEmptyPages) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  cache.extend(sequence, 64);
  const std::size_t free_before = cache.usage().pages_free;
  const Mark outer = cache.mark(sequence);
  const Mark inner = cache.mark(sequence);
  cache.free_tokens(sequence, 0, 0, range(16, 32));
  cache.commit(inner);
  EXPECT_EQ(cache.usage().pages_free, free_before);
  cache.commit(outer);
  EXPECT_EQ(cache.usage().pages_free, free_before + 1);
  EXPECT_EQ(cache.view(sequence, 0, 0).slots, 48);
}

TEST(Cache, StaleMarksAreBugs) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  const Mark outer = cache.mark(sequence);
  const Mark inner = cache.mark(sequence);
  cache.restore(outer);
  EXPECT_THROW(cache.restore(inner), InternalError);
  EXPECT_THROW(cache.commit(outer), InternalError);
  const Mark lost = cache.mark(sequence);
  cache.destroy(sequence);
  EXPECT_THROW(cache.restore(lost), InternalError);
  const SequenceId next = cache.create();
  EXPECT_THROW(cache.restore({next, lost.serial}), InternalError);
  EXPECT_THROW(cache.commit(Mark{}), InternalError);
}

TEST(Cache, ForkHoldsNoMarks) {
  Cache cache(small_shape(1024));
  const SequenceId source = cache.create();
  cache.extend(source, 32);
  const Mark mark = cache.mark(source);
  cache.free_tokens(source, 0, 0, range(0, 16));
  const SequenceId fork = cache.fork(source);
  EXPECT_EQ(cache.view(fork, 0, 0).slots, 16);
  EXPECT_THROW(cache.restore({fork, mark.serial}), InternalError);
  cache.restore(mark);
  EXPECT_EQ(cache.live_tokens(source, 0, 0), 32);
  EXPECT_EQ(cache.live_tokens(fork, 0, 0), 16);
}

TEST(Cache, WrongCallsAreBugs) {
  Cache cache(small_shape(512));
  const SequenceId sequence = cache.create();
  EXPECT_THROW(cache.view(sequence, 2, 0), InternalError);
  EXPECT_THROW(cache.view(sequence, 0, 3), InternalError);
  EXPECT_THROW(cache.view(sequence, -1, 0), InternalError);
  EXPECT_THROW(cache.extend(sequence, -1), InternalError);
  EXPECT_THROW(cache.length(sequence + 1), InternalError);
  EXPECT_THROW(cache.fork(-1), InternalError);
}

TEST(Cache, ImpossibleCapacityIsTheUsersError) {
  for (const std::int64_t tokens : {std::int64_t{0}, std::int64_t{-5}, std::int64_t{1} << 60}) {
    try {
      Cache cache(small_shape(tokens));
      FAIL() << tokens;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(std::to_string(tokens)), testing::HasSubstr("-c")));
    }
  }
}

}  // namespace
}  // namespace glimpse::kv
