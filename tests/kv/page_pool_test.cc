#include "glimpse/kv/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "glimpse/base/error.h"

namespace glimpse::kv {
namespace {

constexpr std::size_t kPageBytes = 256;

TEST(PagePool, HandsOutAlignedRunsLowestFirst) {
  PagePool pool(70, kPageBytes);
  EXPECT_EQ(pool.pages_total(), 70u * kRunPages);
  for (PageId run = 0; run < 70; ++run) EXPECT_EQ(pool.take_run(), run * kRunPages);
  EXPECT_EQ(pool.pages_free(), 0u);
  EXPECT_FALSE(pool.take_run().has_value());
  EXPECT_THROW(pool.take_page(), InternalError);
}

TEST(PagePool, SinglesComeFromBrokenRunsFirst) {
  PagePool pool(3, kPageBytes);
  EXPECT_EQ(pool.take_page(), 0u);
  EXPECT_EQ(pool.whole_runs(), 2u);
  EXPECT_EQ(pool.take_run(), PageId{16});
  for (PageId page = 1; page < 16; ++page) EXPECT_EQ(pool.take_page(), page);
  EXPECT_EQ(pool.whole_runs(), 1u);
  EXPECT_EQ(pool.take_page(), 32u);
  EXPECT_EQ(pool.whole_runs(), 0u);
}

TEST(PagePool, RunIsWholeAgainWhenItsLastPageIsBack) {
  PagePool pool(1, kPageBytes);
  ASSERT_TRUE(pool.take_run().has_value());
  for (PageId page = 0; page < 15; ++page) pool.release(page);
  EXPECT_EQ(pool.whole_runs(), 0u);
  EXPECT_FALSE(pool.take_run().has_value());
  pool.release(15);
  EXPECT_EQ(pool.whole_runs(), 1u);
  EXPECT_EQ(pool.take_run(), PageId{0});
}

TEST(PagePool, SharedPageStaysUntilItsLastReaderLeaves) {
  PagePool pool(1, kPageBytes);
  const PageId page = pool.take_page();
  pool.share({&page, 1});
  EXPECT_EQ(pool.readers(page), 2u);
  pool.release(page);
  EXPECT_EQ(pool.pages_free(), 15u);
  pool.release(page);
  EXPECT_EQ(pool.pages_free(), 16u);
  EXPECT_THROW(pool.release(page), InternalError);
}

TEST(PagePool, SharesRunsAndPagesInAnyOrder) {
  PagePool pool(5, kPageBytes);
  for (int run = 0; run < 5; ++run) ASSERT_TRUE(pool.take_run().has_value());
  std::vector<PageId> pages(53);
  std::iota(pages.begin(), pages.begin() + 32, 16);  // two runs
  std::iota(pages.begin() + 32, pages.end(), 48);    // and one that is none: a page of it waits, two change places
  pages[33] = kNoPage;
  std::swap(pages[40], pages[41]);
  std::vector<std::uint32_t> wanted(pool.pages_total(), 1);
  for (int times = 0; times < 3; ++times) {
    pool.share(pages);
    for (const PageId page : pages) {
      if (page != kNoPage) ++wanted[page];
    }
  }
  pool.share({pages.data() + 3, 20});  // across a run's end
  for (std::size_t i = 3; i < 23; ++i) ++wanted[pages[i]];
  for (PageId page = 0; page < wanted.size(); ++page) EXPECT_EQ(pool.readers(page), wanted[page]) << page;
}

TEST(PagePool, CopiesBothPlanes) {
  PagePool pool(1, kPageBytes);
  const PageId from = pool.take_page();
  const PageId to = pool.take_page();
  std::memset(pool.k_plane() + from * kPageBytes, 1, kPageBytes);
  std::memset(pool.v_plane() + from * kPageBytes, 2, kPageBytes);
  pool.copy(from, to);
  for (std::size_t i = 0; i < kPageBytes; ++i) {
    EXPECT_EQ(pool.k_plane()[to * kPageBytes + i], std::byte{1});
    EXPECT_EQ(pool.v_plane()[to * kPageBytes + i], std::byte{2});
  }
  EXPECT_EQ(pool.k_plane()[(to + 1) * kPageBytes], std::byte{0});
}

TEST(PagePool, RandomTakesAndReleasesKeepTheSet) {
  constexpr std::size_t kRuns = 130;
  PagePool pool(kRuns, kPageBytes);
  std::mt19937 random(7);
  std::vector<PageId> held;
  std::set<PageId> held_set;
  for (int step = 0; step < 20000; ++step) {
    const auto kind = random() % 20;
    if (kind == 0) {
      const auto run = pool.take_run();
      std::size_t whole = 0;
      for (PageId first = 0; first < kRuns * kRunPages; first += kRunPages) {
        const auto next = held_set.lower_bound(first);
        if (next == held_set.end() || *next >= first + kRunPages) ++whole;
      }
      ASSERT_EQ(run.has_value(), whole > 0);
      for (PageId i = 0; run && i < kRunPages; ++i) {
        held.push_back(*run + i);
        ASSERT_TRUE(held_set.insert(*run + i).second);
      }
    } else if (kind < 8 && pool.pages_free() > 0) {
      held.push_back(pool.take_page());
      ASSERT_TRUE(held_set.insert(held.back()).second);
    } else if (!held.empty()) {
      std::swap(held[random() % held.size()], held.back());
      pool.release(held.back());
      held_set.erase(held.back());
      held.pop_back();
    }
    ASSERT_EQ(pool.pages_free(), kRuns * kRunPages - held.size());
  }
  for (const PageId page : held) pool.release(page);
  EXPECT_EQ(pool.whole_runs(), kRuns);
}

}  // namespace
}  // namespace glimpse::kv
