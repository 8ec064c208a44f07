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

TEST(Printable, ExcerptsAreShortAndOfWholeCharacters) {
  EXPECT_EQ(excerpt("a\nb"), "a?b");
  const std::string all(64, 'x');
  EXPECT_EQ(excerpt(all), all);
  EXPECT_EQ(excerpt(all + "x"), all + "...");
  EXPECT_EQ(excerpt(std::string(63, 'x') + "\xc3\xa4 and more"), std::string(63, 'x') + "...");
  EXPECT_EQ(excerpt(std::string(62, 'x') + "\xc3\xa4 and more"), std::string(62, 'x') + "\xc3\xa4...");
  EXPECT_EQ(excerpt(std::string(61, 'x') + "\xf0\x9f\x8c\x8a"), std::string(61, 'x') + "...");
  // Bytes that are no characters are cut anywhere.
  EXPECT_EQ(excerpt(std::string(70, '\x80')).size(), 63u);
}

TEST(Printable, SizesHaveTheUnitThatFits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(23592960), "23.59 MB");
  EXPECT_EQ(bytes_text(141e9), "141.00 GB");
  EXPECT_EQ(bytes_text(2e15), "2000.00 TB");
}

}  // namespace
}  // namespace glimpse
