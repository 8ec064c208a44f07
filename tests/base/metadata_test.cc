#include "glimpse/base/metadata.h"

#include <gtest/gtest.h>

namespace glimpse {
namespace {

Metadata example() {
  Metadata metadata;
  metadata.values["count"] = {MetaType::u32, std::int64_t{7}};
  metadata.values["negative"] = {MetaType::i64, std::int64_t{-3}};
  metadata.values["ratio"] = {MetaType::f32, 0.25};
  metadata.values["name"] = {MetaType::string, std::string_view("llama")};
  MetaArray words;
  words.element = MetaType::string;
  words.strings = {"a", "b", "c"};
  metadata.values["words"] = {MetaType::array, words};
  return metadata;
}

TEST(Metadata, FindsByKey) {
  const Metadata metadata = example();
  ASSERT_NE(metadata.find("count"), nullptr);
  EXPECT_EQ(metadata.find("count")->type, MetaType::u32);
  EXPECT_EQ(metadata.find("Count"), nullptr);
  EXPECT_EQ(metadata.find(""), nullptr);
}

TEST(Metadata, GettersGiveTheirKind) {
  const Metadata metadata = example();
  EXPECT_EQ(metadata.integer("count"), 7);
  EXPECT_EQ(metadata.integer("negative"), -3);
  EXPECT_EQ(metadata.real("ratio"), 0.25);
  EXPECT_EQ(metadata.string("name"), "llama");
  ASSERT_NE(metadata.array("words"), nullptr);
  EXPECT_EQ(metadata.array("words")->size(), 3u);
  EXPECT_EQ(metadata.array("words")->strings[2], "c");
}

TEST(Metadata, RealTakesIntegersButNotTheOtherWayRound) {
  const Metadata metadata = example();
  EXPECT_EQ(metadata.real("negative"), -3.0);
  EXPECT_FALSE(metadata.integer("ratio").has_value());
}

TEST(Metadata, MissingOrOfAnotherKindIsEmpty) {
  const Metadata metadata = example();
  for (const char* key : {"missing", "name", "words"}) {
    EXPECT_FALSE(metadata.integer(key).has_value()) << key;
    EXPECT_FALSE(metadata.real(key).has_value()) << key;
  }
  EXPECT_FALSE(metadata.string("count").has_value());
  EXPECT_EQ(metadata.array("name"), nullptr);
  EXPECT_EQ(metadata.array("missing"), nullptr);
}

TEST(Metadata, ArraySizeFollowsItsElementType) {
  MetaArray array;
  array.strings = {"x"};
  array.integers = {1, 2};
  array.reals = {1, 2, 3};
  array.element = MetaType::string;
  EXPECT_EQ(array.size(), 1u);
  for (const MetaType type : {MetaType::u8, MetaType::i32, MetaType::boolean, MetaType::u64}) {
    array.element = type;
    EXPECT_EQ(array.size(), 2u);
  }
  for (const MetaType type : {MetaType::f32, MetaType::f64}) {
    array.element = type;
    EXPECT_EQ(array.size(), 3u);
  }
}

}  // namespace
}  // namespace glimpse
