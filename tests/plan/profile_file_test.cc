// Profiles in a folder: found by fingerprint, replaced whole or not at all.
#include "glimpse/plan/profile_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "glimpse/base/error.h"
#include "tests/support/refusal.h"

namespace glimpse::plan {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

Profile sample(int reselect) {
  Profile profile;
  profile.model = {"llama", "Sample 1B", 4, 4, 2, 64, 0};
  profile.tidal = TidalProfile{reselect};
  return profile;
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void write(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

class ProfileFile : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "glimpse-profiles-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

TEST_F(ProfileFile, IsNamedByTheFingerprintIn16Digits) {
  EXPECT_EQ(profile_path("/data/profiles", 0x12abu), fs::path("/data/profiles/00000000000012ab.json"));
  EXPECT_EQ(profile_path("", ~std::uint64_t{0}), fs::path("ffffffffffffffff.json"));
}

TEST_F(ProfileFile, ComesBackAndIsReplaced) {
  const fs::path file = profile_path(folder_ / "not" / "there", 7);
  EXPECT_EQ(load_profile(file), std::nullopt);
  save_profile(file, sample(2));
  EXPECT_EQ(load_profile(file), sample(2));
  EXPECT_EQ(text_of(file), to_json(sample(2)));
  save_profile(file, sample(3));
  EXPECT_EQ(load_profile(file), sample(3));
  EXPECT_EQ(std::distance(fs::directory_iterator(file.parent_path()), fs::directory_iterator()), 1);
  EXPECT_EQ(load_profile(file / "below"), std::nullopt) << "a file is no folder: there is no profile";
}

TEST_F(ProfileFile, KeepsLinksAndPermissions) {
  const fs::path file = folder_ / "real.json", link = folder_ / "link.json";
  save_profile(file, sample(2));
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  fs::create_symlink(file, link);
  save_profile(link, sample(3));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(load_profile(file), sample(3));
  struct stat status {};
  ASSERT_EQ(::stat(file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST_F(ProfileFile, WhatIsNoProfileIsRefusedByName) {
  const fs::path file = folder_ / "x.json";
  for (const auto& [text, says] : std::vector<std::pair<std::string, std::string>>{
           {"", "not valid JSON"}, {to_json(sample(2)).substr(0, 40), "not valid JSON"}, {"{}", "is missing"}}) {
    write(file, text);
    EXPECT_THAT(refusal([&] { load_profile(file); }), AllOf(HasSubstr("'" + file.string() + "'"), HasSubstr(says)));
  }
  EXPECT_THAT(refusal([&] { load_profile(folder_); }), HasSubstr("not a regular file"));
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(refusal([&] { load_profile(pipe); }), HasSubstr("not a regular file"));
}

TEST_F(ProfileFile, AFailedSaveLeavesTheOldFile) {
  const fs::path file = folder_ / "x.json";
  save_profile(file, sample(2));
  EXPECT_THAT(refusal([&] { save_profile(file, sample(9)); }), HasSubstr("layer 9")) << "no profile at all";
  EXPECT_THAT(refusal([&] { save_profile(file / "below.json", sample(3)); }), HasSubstr("below.json"));
  EXPECT_THAT(refusal([&] { save_profile(folder_, sample(3)); }), HasSubstr("not a regular file"));
  EXPECT_THAT(refusal([&] { save_profile(folder_ / std::string(300, 'x'), sample(3)); }), HasSubstr("cannot write"));
  // A disk that is full after 16 bytes.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit little{16, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  const std::string full = refusal([&] { save_profile(file, sample(3)); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(full, HasSubstr("cannot write '" + file.string() + "'"));
  EXPECT_EQ(load_profile(file), sample(2));
  EXPECT_EQ(files(), 1u) << "nothing is left beside it";
  if (::geteuid() == 0) return;  // root writes everywhere
  ASSERT_EQ(::chmod(folder_.c_str(), 0500), 0);
  EXPECT_THAT(refusal([&] { save_profile(file, sample(3)); }), HasSubstr("cannot write"));
  EXPECT_THAT(refusal([&] { save_profile(folder_ / "new" / "x.json", sample(3)); }), HasSubstr("make the folder"));
  ::chmod(folder_.c_str(), 0700);
  EXPECT_EQ(load_profile(file), sample(2));
}

}  // namespace
}  // namespace glimpse::plan
