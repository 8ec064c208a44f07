// What a person at a terminal sees: a progress line as wide as the terminal, and none where it takes no controls.
#include "tests/cli/terminal.h"

#include <gtest/gtest.h>

#include "tests/cli/process.h"

namespace glimpse::cli {
namespace {

std::vector<std::string> long_prefill() {
  return run_words({"-p", prose(40), "-n", "1", "--prefill-chunk", "4", "--json"});
}

TEST(Terminal, ProgressIsCutToItsWidth) {
  for (const unsigned short columns : {20, 40}) {
    const Shown shown = run_in_terminal(long_prefill(), {.columns = columns});
    ASSERT_EQ(shown.code, 0) << shown.bytes;
    const std::string progress = shown.bytes.substr(0, shown.bytes.find("{\"text\""));
    EXPECT_NE(progress.find("prefill "), std::string::npos) << shown.bytes;
    EXPECT_LT(longest_line(progress), columns) << progress;
    EXPECT_GT(longest_line(progress), 15u) << progress;
    EXPECT_TRUE(progress.ends_with("\r\x1b[K")) << "the progress line is gone before the answer: " << progress;
  }
}

TEST(Terminal, ADumbOneGetsNoControls) {
  for (const char* kind : {"dumb", ""}) {
    const Shown shown = run_in_terminal(long_prefill(), {.kind = kind, .columns = 20});
    ASSERT_EQ(shown.code, 0) << shown.bytes;
    EXPECT_EQ(shown.bytes.find('\x1b'), std::string::npos) << shown.bytes;
    EXPECT_EQ(shown.bytes.rfind("{\"text\"", 0), 0u) << shown.bytes;
    for (std::size_t at = 0; (at = shown.bytes.find('\r', at)) != std::string::npos; ++at) {
      EXPECT_EQ(shown.bytes[at + 1], '\n') << "only the terminal's own line ends: " << shown.bytes;
    }
  }
}

TEST(Terminal, HelpIsFoldedToItsWidth) {
  const Shown wide = run_in_terminal({"run", "--help"}, {.columns = 200});
  EXPECT_LE(longest_line(wide.bytes), 120u);
  const Shown narrow = run_in_terminal({"run", "--help"}, {.columns = 60});
  EXPECT_EQ(narrow.code, 0);
  EXPECT_LE(longest_line(narrow.bytes), 60u) << narrow.bytes;
  EXPECT_EQ(run_in_terminal({"run", "--help"}, {.columns = 1}).code, 0);
}

TEST(Terminal, ADialogueAsksAndEnds) {
  const Shown shown =
      run_in_terminal(run_words({"-i", "-n", "2"}), {.kind = "dumb", .columns = 20, .input = "who?\n/quit\n"});
  EXPECT_EQ(shown.code, 0) << shown.bytes;
  EXPECT_NE(shown.bytes.find("> "), std::string::npos) << shown.bytes;
  EXPECT_EQ(shown.bytes.find('\x1b'), std::string::npos) << shown.bytes;
}

}  // namespace
}  // namespace glimpse::cli
