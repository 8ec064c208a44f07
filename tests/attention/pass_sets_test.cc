// The sets of a pass as a table: what is published is read back, lists that all hold everything are said so.
#include "glimpse/attention/cpu/pass_sets.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "glimpse/base/error.h"

namespace glimpse::attention {
namespace {

using List = std::vector<std::int32_t>;

List all_of(std::int32_t tokens) {
  List list(static_cast<std::size_t>(tokens));
  std::iota(list.begin(), list.end(), 0);
  return list;
}

List read(const PassSets& sets, int set) {
  const auto list = sets.list(set);
  return {list.begin(), list.end()};
}

TEST(PassSets, AreRowsOfTheTable) {
  PassSets sets;
  sets.open(3, 40);
  sets.publish(0, List{0, 3, 39});
  sets.publish(2, all_of(40));
  sets.publish(1, List{});
  for (int set = 0; set < 3; ++set) sets.close(set, 1, 40);
  const auto table = sets.table();
  EXPECT_EQ(table.sets, 3);
  EXPECT_EQ(table.capacity, 40);
  EXPECT_EQ(table.count[0], 3);
  EXPECT_EQ(table.slots[2], 39);
  EXPECT_EQ(table.count[1], 0);
  EXPECT_EQ(table.count[2], kernels::kEverything);
  EXPECT_EQ(read(sets, 0), (List{0, 3, 39}));
  EXPECT_TRUE(sets.everything(2));
  EXPECT_EQ(sets.published(2, 1, 40).lists, std::vector<List>{all_of(40)});
}

TEST(PassSets, ASlotIsEverythingWhereEachOfItsListsIs) {
  PassSets sets;
  sets.open(4, 8);
  sets.publish(0, all_of(8));
  sets.publish(1, List{1, 7});
  sets.close(0, 2, 8);
  EXPECT_FALSE(sets.everything(0));
  EXPECT_EQ(read(sets, 0), all_of(8));
  sets.publish(2, all_of(8));
  sets.publish(3, all_of(8));
  sets.close(2, 2, 8);
  EXPECT_TRUE(sets.everything(2) && sets.everything(3));
  const PublishedSet some = sets.published(0, 2, 8);
  EXPECT_FALSE(some.everything);
  EXPECT_EQ(some.lists, (std::vector<List>{all_of(8), {1, 7}}));
}

TEST(PassSets, AnOperationMakesListsInTheTable) {
  PassSets sets;
  sets.open(4, 8);
  const auto table = sets.table();
  table.count[0] = kernels::kEverything;  // one of two query heads takes all
  table.count[1] = 2;
  table.slots[8] = 3;
  table.slots[9] = 6;
  sets.close(0, 2, 7);
  EXPECT_FALSE(sets.everything(0) || sets.everything(1));
  EXPECT_EQ(read(sets, 0), all_of(7));
  EXPECT_EQ(read(sets, 1), (List{3, 6}));
  table.count[2] = table.count[3] = kernels::kEverything;
  sets.close(2, 2, 7);
  EXPECT_TRUE(sets.everything(2) && sets.everything(3));
}

TEST(PassSets, EndWithThePass) {
  PassSets sets;
  sets.open(2, 8);
  sets.publish(1, List{5});
  sets.open(2, 100000);
  EXPECT_TRUE(sets.list(1).empty());
  sets.publish(1, all_of(99999));
  sets.close(1, 1, 100000);
  EXPECT_EQ(sets.list(1).size(), 99999u);
  EXPECT_THROW(sets.publish(0, all_of(100001)), InternalError);
}

}  // namespace
}  // namespace glimpse::attention
