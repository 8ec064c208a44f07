#include "glimpse/evaluate/npy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "glimpse/base/error.h"
#include "tests/support/places.h"

namespace glimpse::evaluate {
namespace {

class Npy : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = test::models_folder().parent_path() / "npy-scratch" /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  std::filesystem::path folder_;
};

TEST_F(Npy, FileIsWhatNumpyReads) {
  const auto path = folder_ / "a.npy";
  const std::vector<float> rows{1.5f, -2.0f, 3.25f, 4.0f, 0.0f, -6.5f};
  NpyWriter writer(path, 2, 3);
  writer.add({rows.data(), 3});
  EXPECT_FALSE(std::filesystem::exists(path)) << "the file appears when it is whole";
  writer.add({rows.data() + 3, 3});
  writer.finish();
  EXPECT_EQ(files(), 1u);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  ASSERT_EQ(bytes.size(), 128u + 24u);
  EXPECT_EQ(bytes.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(bytes.substr(10, 61), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }  ");
  EXPECT_EQ(bytes[127], '\n');
  EXPECT_EQ(std::memcmp(bytes.data() + 128, rows.data(), 24), 0);
}

TEST_F(Npy, AnUnfinishedFileIsRemovedAndTheOldOneStays) {
  const auto path = folder_ / "a.npy";
  std::ofstream(path) << "old";
  {
    NpyWriter writer(path, 2, 1);
    const float value = 1;
    writer.add({&value, 1});
    EXPECT_EQ(files(), 2u);
    EXPECT_THROW(writer.finish(), InternalError);
  }
  EXPECT_EQ(files(), 1u);
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "old");
}

TEST_F(Npy, RefusesWhatItCannotWrite) {
  EXPECT_THROW(NpyWriter(folder_ / "missing" / "a.npy", 1, 1), UserError);
  EXPECT_THROW(NpyWriter(folder_, 1, 1), UserError);
  EXPECT_THROW(NpyWriter("/dev/full", 1, 1), UserError);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  NpyWriter writer(folder_ / "a.npy", 1, 2);
  const float value = 1;
  EXPECT_THROW(writer.add({&value, 1}), InternalError);
}

}  // namespace
}  // namespace glimpse::evaluate
