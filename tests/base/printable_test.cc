#include "glimpse/base/printable.h"

#include <gtest/gtest.h>

namespace glimpse {
namespace {

TEST(Printable, LeavesTextAndTakesWhatATerminalObeys) {
  EXPECT_EQ(printable("plain text, \xc3\xa4 \xe2\x82\xac \xc2\xa0"), "plain text, \xc3\xa4 \xe2\x82\xac \xc2\xa0");
  EXPECT_EQ(printable("a\x1b[31mb\nc\td\x7f"), "a?[31mb?c?d?");
  EXPECT_EQ(printable(std::string_view("x\0y", 3)), "x?y");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m\xc2\x80\xc2"),
            "?31m?\xc2");
  EXPECT_EQ(printable(""), "");
}

}  // namespace
}  // namespace glimpse
