// Where bytes go: full disks, readers that leave, and Ctrl-C.
#include <gtest/gtest.h>

#include <csignal>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

TEST(Output, AFullDiskIsReportedAndTheAnswerIsNotLost) {
  const auto words = run_words({"-p", "the river", "-n", "8"});
  const Outcome full = run_program(words, {.out_file = "/dev/full"});
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find("cannot write to standard output: No space left"), std::string::npos) << full.err;
  EXPECT_NE(full.err.find("generated  "), std::string::npos) << "statistics all the same: " << full.err;

  auto traced = words;
  traced.insert(traced.end(), {"--trace", "/dev/full"});
  const Outcome trace = run_program(traced);
  EXPECT_EQ(trace.code, 2);
  EXPECT_NE(trace.err.find("cannot write to '/dev/full'"), std::string::npos) << trace.err;
  EXPECT_FALSE(trace.out.empty()) << "what was printed before stays";

  for (const std::vector<std::string>& other : std::vector<std::vector<std::string>>{
           {"plan", "--list"}, {"--help"}, {"inspect", model()}, {"plan", "-m", model(), "--json"}}) {
    EXPECT_EQ(run_program(other, {.out_file = "/dev/full"}).code, 2) << other[0];
  }
}

TEST(Output, ARefusedRunEmptiesNoTrace) {
  const auto path = scratch("trace.jsonl");
  write_file(path, "old\n");
  EXPECT_EQ(run_program(run_words({"-p", prose(40), "-c", "32", "--trace", path.string()})).code, 2);
  EXPECT_EQ(read_file(path), "old\n");
}

TEST(Interrupt, EndsAfterTheStepWithStatistics) {
  bool sent = false;
  Setting setting;
  setting.on_output_bytes = [&](int pid, const std::string& out) {
    if (!sent && out.size() > 20) sent = ::kill(pid, SIGINT) == 0;
  };
  const Outcome outcome = run_program(run_words({"-p", "the river", "-n", "4000", "--repeat-penalty", "1.3"}), setting);
  ASSERT_TRUE(sent);
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_NE(outcome.err.find("ended by interrupted"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("of the bytes of dense attention"), std::string::npos) << outcome.err;
  EXPECT_TRUE(outcome.out.ends_with('\n'));
}

}  // namespace
}  // namespace glimpse::cli
