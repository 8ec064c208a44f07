// What good files give, and that no truncation and no flipped bit does worse than a UserError.
#include "glimpse/model/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "gguf_builder.h"
#include "glimpse/base/error.h"
#include "glimpse/model/model.h"

namespace glimpse::model {
namespace {

using testing::HasSubstr;

std::string error_of(const std::function<void()>& load) {
  try {
    load();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Gguf, ReadsEveryValueType) {
  GgufBuilder file;
  file.set("u8", 0, raw(std::uint8_t{200}));
  file.set("i8", 1, raw(std::int8_t{-100}));
  file.set("u16", 2, raw(std::uint16_t{60000}));
  file.set("i16", 3, raw(std::int16_t{-30000}));
  file.set_u32("u32", 4000000000u);
  file.set("i32", 5, raw(std::int32_t{-2000000000}));
  file.set_f32("f32", 0.5f);
  file.set_bool("bool", 1);
  file.set_string("string", "h\xc3\xa9llo");
  file.set("u64", 10, raw(std::uint64_t{1} << 62));
  file.set("i64", 11, raw(std::int64_t{-1} << 62));
  file.set("f64", 12, raw(1e300));
  file.set_strings("strings", {"a", "", "bc"});
  file.set_i32s("i32s", {1, -2});
  file.set_f32s("f32s", {0.25f});
  const std::vector<std::byte> bytes = file.bytes();
  const GgufFile gguf(bytes, "types");
  const Metadata& metadata = gguf.metadata();
  EXPECT_EQ(metadata.integer("u8"), 200);
  EXPECT_EQ(metadata.integer("i8"), -100);
  EXPECT_EQ(metadata.integer("u16"), 60000);
  EXPECT_EQ(metadata.integer("i16"), -30000);
  EXPECT_EQ(metadata.integer("u32"), 4000000000);
  EXPECT_EQ(metadata.integer("i32"), -2000000000);
  EXPECT_EQ(metadata.real("f32"), 0.5);
  EXPECT_EQ(metadata.integer("bool"), 1);
  EXPECT_EQ(metadata.find("bool")->type, MetaType::boolean);
  EXPECT_EQ(metadata.string("string"), "h\xc3\xa9llo");
  EXPECT_EQ(metadata.integer("u64"), std::int64_t{1} << 62);
  EXPECT_EQ(metadata.integer("i64"), std::int64_t{-1} << 62);
  EXPECT_EQ(metadata.real("f64"), 1e300);
  EXPECT_THAT(metadata.array("strings")->strings, testing::ElementsAre("a", "", "bc"));
  EXPECT_THAT(metadata.array("i32s")->integers, testing::ElementsAre(1, -2));
  EXPECT_THAT(metadata.array("f32s")->reals, testing::ElementsAre(0.25));
  EXPECT_EQ(metadata.values.size(), 15u);
  EXPECT_TRUE(gguf.tensors().empty());
}

TEST(Gguf, PlacesTensorsAtEveryAlignment) {
  for (const std::uint32_t alignment : {8u, 32u, 64u, 4096u}) {
    GgufBuilder file;
    file.alignment = alignment;
    file.set_u32("general.alignment", alignment);
    file.add_tensor("b", {3, 5});
    file.add_tensor("a", {7});
    file.version = 2;
    const std::vector<std::byte> bytes = file.bytes();
    const GgufFile gguf(bytes, "aligned");
    ASSERT_EQ(gguf.tensors().size(), 2u);
    EXPECT_EQ(gguf.tensors()[0].name, "a");
    for (const BuilderTensor& expected : file.tensors) {
      const TensorInfo* tensor = gguf.find(expected.name);
      ASSERT_NE(tensor, nullptr);
      ASSERT_EQ(tensor->bytes, expected.data.size());
      EXPECT_EQ(std::memcmp(tensor->data, expected.data.data(), tensor->bytes), 0);
      EXPECT_EQ((tensor->data - bytes.data()) % alignment, 0);
    }
    EXPECT_EQ(gguf.find("b")->shape, (std::array<std::int64_t, 4>{3, 5, 1, 1}));
    EXPECT_EQ(gguf.find("b")->rows(), 5);
    EXPECT_EQ(gguf.find("c"), nullptr);
  }
}

TEST(Gguf, EveryTruncationIsRefused) {
  for (const GgufBuilder& file : {tiny_model(), tiny_sentencepiece_model()}) {
    const std::vector<std::byte> bytes = file.bytes();
    ASSERT_NO_THROW(Model(GgufFile(bytes, "whole")));
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      // Its own allocation, so that a read past the end is seen.
      const std::vector<std::byte> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_THROW(GgufFile(part, "cut"), UserError) << "cut to " << length;
    }
  }
}

TEST(Gguf, FlippedBitsParseOrAreRefused) {
  std::mt19937_64 random(20240607);
  int refused = 0;
  for (const GgufBuilder& file : {tiny_model(), tiny_model("qwen2"), tiny_sentencepiece_model()}) {
    const std::vector<std::byte> good = file.bytes();
    std::size_t header = 24;
    for (const BuilderPair& pair : file.pairs) header += 12 + pair.key.size() + pair.payload.size();
    for (const BuilderTensor& tensor : file.tensors) header += 24 + tensor.name.size() + 8 * tensor.shape.size();
    for (int round = 0; round < 10000; ++round) {
      std::vector<std::byte> bytes = good;
      const int flips = 1 + static_cast<int>(random() % 4);
      for (int i = 0; i < flips; ++i) bytes[random() % header] ^= std::byte{1} << (random() % 8);
      try {
        const Model model(GgufFile(bytes, "flipped"));
      } catch (const UserError&) {
        ++refused;  // any other exception fails the test
      }
    }
  }
  EXPECT_GT(refused, 15000);
  EXPECT_LT(refused, 30000);
}

TEST(Gguf, RandomBytesAfterTheHeaderAreRefused) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(24 + random() % 400);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    const std::string start = "GGUF" + raw(3u) + raw(std::uint64_t{1}) + raw(std::uint64_t{1});
    std::memcpy(bytes.data(), start.data(), start.size());
    EXPECT_THROW(GgufFile(bytes, "random"), UserError);
  }
}

class SplitTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("glimpse-split-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    const GgufBuilder whole = tiny_model();
    for (int i = 0; i < 3; ++i) {
      GgufBuilder part;
      if (i == 0) part.pairs = whole.pairs;
      part.set("split.no", 2, raw(static_cast<std::uint16_t>(i)));
      part.set("split.count", 2, raw(std::uint16_t{3}));
      part.set("split.tensors.count", 5, raw(static_cast<std::int32_t>(whole.tensors.size())));
      parts_.push_back(part);
    }
    for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
      parts_[i == 0 ? 0 : 1 + i % 2].tensors.push_back(whole.tensors[i]);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path path(int part, int count = 3) const {
    char name[64];
    std::snprintf(name, sizeof(name), "m-%05d-of-%05d.gguf", part, count);
    return folder_ / name;
  }
  void write() const {
    for (std::size_t i = 0; i < parts_.size(); ++i) write(parts_[i], path(static_cast<int>(i) + 1));
  }
  static void write(const GgufBuilder& file, const std::filesystem::path& path) {
    const std::vector<std::byte> bytes = file.bytes();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::string error(int part = 1) const {
    return error_of([&] { Model model(path(part)); });
  }

  std::filesystem::path folder_;
  std::vector<GgufBuilder> parts_;
};

TEST_F(SplitTest, AnyPartOpensTheWhole) {
  write();
  const std::vector<std::byte> bytes = tiny_model().bytes();
  const GgufFile whole(bytes, "whole");
  for (int part = 1; part <= 3; ++part) {
    const Model model(path(part));
    ASSERT_EQ(model.file().tensors().size(), whole.tensors().size());
    for (const TensorInfo& expected : whole.tensors()) {
      const TensorInfo* tensor = model.file().find(expected.name);
      ASSERT_NE(tensor, nullptr) << expected.name;
      EXPECT_EQ(std::memcmp(tensor->data, expected.data, expected.bytes), 0);
    }
    EXPECT_EQ(model.config().hidden, 16);
  }
}

TEST_F(SplitTest, MissingPartIsNamed) {
  write();
  std::filesystem::remove(path(2));
  EXPECT_THAT(error(), HasSubstr("m-00002-of-00003.gguf"));
}

TEST_F(SplitTest, CountUnlikeTheName) {
  parts_[0].set("split.count", 2, raw(std::uint16_t{2}));
  write();
  EXPECT_THAT(error(), HasSubstr("split.count is 2 but the file name says 3"));
}

TEST_F(SplitTest, PartUnderAWholeName) {
  write(parts_[0], folder_ / "whole.gguf");
  EXPECT_THAT(error_of([&] { Model model(folder_ / "whole.gguf"); }), HasSubstr("split.count is 3"));
}

TEST_F(SplitTest, PartsSwapped) {
  std::swap(parts_[1], parts_[2]);
  write();
  EXPECT_THAT(error(), HasSubstr("is named part 2 but its split.no says part 3"));
}

TEST_F(SplitTest, PartOfAnotherModel) {
  parts_[2].set("split.tensors.count", 5, raw(std::int32_t{99}));
  write();
  EXPECT_THAT(error(), HasSubstr("does not belong to the same split model"));
}

TEST_F(SplitTest, TensorsDoNotAddUp) {
  for (GgufBuilder& part : parts_) part.set("split.tensors.count", 5, raw(std::int32_t{99}));
  write();
  EXPECT_THAT(error(), HasSubstr("split.tensors.count is 99 but the 3 parts hold 11"));
}

TEST_F(SplitTest, TensorInTwoParts) {
  parts_[2].tensors.push_back(parts_[1].tensors[0]);
  for (GgufBuilder& part : parts_) part.set("split.tensors.count", 5, raw(std::int32_t{12}));
  write();
  EXPECT_THAT(error(), HasSubstr("appears twice"));
}

TEST_F(SplitTest, NumberOutOfRange) {
  parts_[0].set("split.no", 2, raw(std::uint16_t{3}));
  write();
  EXPECT_THAT(error(), HasSubstr("split.no is 3 but split.count is 3"));
}

TEST_F(SplitTest, PartInMemoryIsRefused) {
  const std::vector<std::byte> bytes = parts_[1].bytes();
  EXPECT_THAT(error_of([&] { GgufFile file(bytes, "part"); }), HasSubstr("is part 2 of 3"));
}

TEST_F(SplitTest, DamagedPartIsTheOneNamed) {
  parts_[1].version = 9;
  write();
  EXPECT_THAT(error(), HasSubstr("m-00002-of-00003.gguf': has GGUF version 9"));
}

}  // namespace
}  // namespace glimpse::model
