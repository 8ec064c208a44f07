// The program with too little memory for what it is asked: it ends well or in one line, whatever allocation fails.
#include <gtest/gtest.h>

#include <algorithm>

#include "glimpse/base/sanitizers.h"
#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

/// One line of error; a line before it may warn of more threads than cores.
bool ends_in_one_line(const Outcome& outcome) {
  std::string err = outcome.err;
  if (err.rfind("warning: -t ", 0) == 0) err.erase(0, err.find('\n') + 1);
  return outcome.code == 2 && err.rfind("error: ", 0) == 0 && std::count(err.begin(), err.end(), '\n') == 1;
}

/// From the least address space (KiB) in which the program starts at all: before main() libllama fills tables, and
/// there nothing can be caught.
std::int64_t least_that_starts() {
  std::int64_t limit = 8 << 10;
  while (run_program({"plan", "--list"}, {.address_space = limit}).code != 0) limit += 512;
  return limit;
}

TEST(Memory, AnyLimitEndsInAResultOrOneLine) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reserves more address space than any limit";
  struct Case {
    std::int64_t step;
    std::vector<std::string> words;
  };
  // Loads and decodes alone; with threads, whose stacks are most of what is asked for; and benchmarks' own threads.
  const Case cases[] = {
      {1200, {"run", "-m", model("small"), "-t", "1", "--raw", "-p", "the river", "-n", "2"}},
      {2500, {"run", "-m", model("small"), "-t", "3", "--raw", "-p", "the river", "-n", "2", "--attn", "quest"}},
      {30000, {"bench", "attention", "-t", "4", "--depth", "64", "-r", "1"}}};
  const std::int64_t least = least_that_starts();
  for (const Case& each : cases) {
    int refused = 0;
    Outcome outcome;
    for (std::int64_t limit = least; outcome.code != 0; limit += each.step) {
      outcome = run_program(each.words, {.address_space = limit});
      if (outcome.code == 0) break;
      ++refused;
      ASSERT_TRUE(ends_in_one_line(outcome))
          << each.words[0] << " with " << limit << " KiB ended with " << outcome.code << ": " << outcome.err;
    }
    EXPECT_GT(refused, 3);
  }
}

TEST(Memory, MoreThreadsThanTheSystemStartsAreRefused) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer reserves more address space than any limit";
  const Outcome outcome = run_program({"run", "-m", model("small"), "-t", "500", "--raw", "-p", "a", "-n", "1"},
                                      {.address_space = 2 << 20});
  EXPECT_TRUE(ends_in_one_line(outcome)) << outcome.code << ": " << outcome.err;
  EXPECT_NE(outcome.err.find("-t a smaller number"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace glimpse::cli
