#include "glimpse/base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "glimpse/base/error.h"

namespace glimpse {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Bytes, ComeBackAsTheyWere) {
  ByteWriter to;
  to.value(std::int64_t{-3});
  to.values(std::vector<float>{1.5F, -0.0F});
  to.text("läuft");
  to.values(std::vector<std::int32_t>{});
  to.value(std::uint8_t{1});
  ByteReader from(to.bytes(), "a file");
  EXPECT_EQ(from.value<std::int64_t>(), -3);
  const auto floats = from.exactly<float>(2, "floats");
  EXPECT_EQ(floats[0], 1.5F);
  EXPECT_TRUE(std::signbit(floats[1]));
  EXPECT_EQ(from.text(10, "text"), "läuft");
  EXPECT_TRUE(from.values<std::int32_t>(0, "none").empty());
  EXPECT_TRUE(from.flag("flag"));
  EXPECT_NO_THROW(from.require_end());
}

TEST(Bytes, NothingRunsOverTheEndOrTheLimit) {
  ByteWriter to;
  to.value(std::uint64_t{1} << 61);  // an array whose bytes overflow
  to.value(2.0F);
  const auto reader = [&] { return ByteReader(to.bytes(), "a file"); };
  EXPECT_THAT([&] { reader().values<double>(~std::uint64_t{0}, "all"); },
              ThrowsMessage<UserError>(HasSubstr("a file ends in the middle")));
  EXPECT_THAT([&] { reader().values<float>(5, "number of things"); },
              ThrowsMessage<UserError>(HasSubstr("number of things")));
  EXPECT_THAT([&] { reader().value<std::int32_t>(1, 5, "count"); }, ThrowsMessage<UserError>(HasSubstr("count = 0")));
  EXPECT_THAT([&] { reader().require_end(); }, ThrowsMessage<UserError>(HasSubstr("a file")));
  const std::vector<std::byte> few(3);
  EXPECT_THROW(ByteReader(few, "a file").value<std::int32_t>(), UserError);
}

}  // namespace
}  // namespace glimpse
