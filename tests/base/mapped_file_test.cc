#include "glimpse/base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("glimpse_mapped_file_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~MappedFileTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& file, const std::string& text) const {
    std::ofstream(folder_ / file, std::ios::binary) << text;
    return folder_ / file;
  }

  void expect_refusal(const fs::path& path, const std::string& reason) const {
    try {
      MappedFile file(path);
      FAIL() << path << " was mapped";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(path.string()), testing::HasSubstr(reason)));
    }
  }

  fs::path folder_;
};

TEST_F(MappedFileTest, ShowsTheBytes) {
  const std::string text("glimpse\0\n\xff", 10);
  const fs::path path = write("file", text);
  const MappedFile file(path);
  EXPECT_EQ(file.path(), path);
  const auto bytes = file.bytes();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), text);
}

TEST_F(MappedFileTest, MovesKeepTheMapping) {
  MappedFile first(write("a", "first"));
  const std::byte* place = first.bytes().data();
  MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().data(), place);
  MappedFile third(write("b", "the other"));
  third = std::move(second);
  EXPECT_EQ(third.bytes().data(), place);
  EXPECT_EQ(third.bytes().size(), 5u);
  EXPECT_EQ(third.path(), folder_ / "a");
}

TEST_F(MappedFileTest, RefusesByNameAndReason) {
  expect_refusal(folder_ / "missing.gguf", "No such file");
  expect_refusal(folder_, "not a regular file");
  expect_refusal(write("empty.gguf", ""), "empty");
  expect_refusal("/dev/null", "not a regular file");
  expect_refusal(write("file", "x") / "below", "Not a directory");
}

}  // namespace
}  // namespace glimpse
