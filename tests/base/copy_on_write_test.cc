#include "glimpse/base/copy_on_write.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace glimpse {
namespace {

TEST(CopyOnWrite, CopiesShareUntilOneChanges) {
  CopyOnWrite<std::vector<int>> one(std::vector<int>{1, 2, 3});
  CopyOnWrite<std::vector<int>> other = one;
  EXPECT_EQ(one->data(), other->data());
  other.own().push_back(4);
  EXPECT_EQ(*one, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(*other, (std::vector<int>{1, 2, 3, 4}));
}

TEST(CopyOnWrite, TheLastCopyChangesInPlace) {
  CopyOnWrite<std::vector<int>> one(std::vector<int>{1, 2, 3});
  const int* const place = one->data();
  { const CopyOnWrite<std::vector<int>> other = one; }
  one.own()[0] = 7;
  EXPECT_EQ(one->data(), place);
  CopyOnWrite<std::vector<int>> other;
  EXPECT_TRUE(other->empty());
  other = one;
  one = CopyOnWrite<std::vector<int>>();
  EXPECT_EQ(other.own().data(), place);
}

TEST(CopyOnWrite, ThreadsWithCopiesOfTheirOwn) {
  for (int round = 0; round < 100; ++round) {
    CopyOnWrite<std::vector<int>> one(std::vector<int>(100, round));
    CopyOnWrite<std::vector<int>> other = one;
    const auto add = [](CopyOnWrite<std::vector<int>>& mine) {
      for (int i = 0; i < 100; ++i) mine.own()[static_cast<std::size_t>(i)] += i;
    };
    std::thread thread([&] { add(one); });
    add(other);
    thread.join();
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ((*one)[static_cast<std::size_t>(i)], round + i);
      ASSERT_EQ((*other)[static_cast<std::size_t>(i)], round + i);
    }
  }
}

}  // namespace
}  // namespace glimpse
