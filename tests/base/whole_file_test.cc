#include "glimpse/base/whole_file.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>

#include "glimpse/base/error.h"
#include "tests/support/refusal.h"

namespace glimpse {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class WholeFile : public testing::Test {
 protected:
  WholeFile() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("glimpse_whole_file_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~WholeFile() override { fs::remove_all(folder_); }
  static std::string bytes_of(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    std::stringstream bytes;
    bytes << in.rdbuf();
    return bytes.str();
  }
  fs::path folder_;
};

TEST_F(WholeFile, AnyBytesComeBackAndALongFileIsRefused) {
  const fs::path file = folder_ / "x";
  std::string bytes;
  for (int i = 0; i < 200'000; ++i) bytes += static_cast<char>(i * 7);
  replace_file(file, bytes);
  EXPECT_EQ(bytes_of(file), bytes);
  EXPECT_EQ(read_whole_file(file, bytes.size()), bytes);
  EXPECT_THAT(refusal([&] { read_whole_file(file, bytes.size() - 1); }), HasSubstr("larger than 199999 bytes"));
  replace_file(file, "");
  EXPECT_EQ(read_whole_file(file, 0), "");
  EXPECT_EQ(read_whole_file(folder_ / "missing", 10), std::nullopt);
  EXPECT_THAT(refusal([&] { read_whole_file(folder_, 10); }), HasSubstr("not a regular file"));
}

TEST_F(WholeFile, ARelativeNameIsOneInTheWorkingFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  replace_file("plain", "one");
  replace_file("sub/plain", "two");
  EXPECT_THAT(refusal([] { replace_file("", "x"); }), HasSubstr("give another name"));
  EXPECT_THAT(refusal([] { replace_file("sub/", "x"); }), HasSubstr("not a regular file"));
  fs::current_path(before);
  EXPECT_EQ(bytes_of(folder_ / "plain"), "one");
  EXPECT_EQ(bytes_of(folder_ / "sub" / "plain"), "two");
}

TEST_F(WholeFile, AProcessThatIsKilledWhileItWritesLeavesTheOldFile) {
  const fs::path file = folder_ / "x";
  replace_file(file, "as it was");
  const std::string more(100'000, 'y');
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_DFL);  // the process dies where its file grows over the limit
    const rlimit little{4096, 4096}, no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::setrlimit(RLIMIT_FSIZE, &little);
    try {
      replace_file(file, more);
    } catch (...) {
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(bytes_of(file), "as it was");
  replace_file(file, more);
  EXPECT_EQ(bytes_of(file), more) << "what the other left behind is in nobody's way";
}

}  // namespace
}  // namespace glimpse
