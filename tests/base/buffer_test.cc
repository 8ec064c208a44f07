#include "glimpse/base/buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "glimpse/base/error.h"

namespace glimpse {
namespace {

TEST(HostBuffer, IsZeroFilledAlignedAndLargeEnough) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, (std::size_t{2} << 20) + 1}) {
    HostBuffer buffer(bytes);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_GE(buffer.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096, 0u);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    buffer.data()[0] = std::byte{7};
    buffer.data()[buffer.size() - 1] = std::byte{9};
    EXPECT_EQ(std::as_const(buffer).data()[buffer.size() - 1], std::byte{9});
  }
}

TEST(HostBuffer, EmptyOwnsNothing) {
  EXPECT_EQ(HostBuffer().data(), nullptr);
  const HostBuffer buffer(0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size(), 0u);
}

TEST(HostBuffer, MovesKeepTheBytesInPlace) {
  HostBuffer first(100);
  first.as<std::int32_t>()[3] = 42;
  const std::byte* place = first.data();
  HostBuffer second(std::move(first));
  EXPECT_EQ(second.data(), place);
  HostBuffer third;
  third = std::move(second);
  EXPECT_EQ(third.data(), place);
  EXPECT_EQ(third.as<std::int32_t>()[3], 42);
  EXPECT_EQ(third.as<double>().size(), third.size() / sizeof(double));
}

TEST(HostBuffer, IsNotCopiedIntoForkedChildren) {
  HostBuffer buffer(100);
  buffer.data()[0] = std::byte{7};
  const auto is_mapped = [&] {
    unsigned char resident = 0;
    return ::mincore(buffer.data(), 1, &resident) == 0;
  };
  ASSERT_TRUE(is_mapped());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(is_mapped() ? 1 : 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(buffer.data()[0], std::byte{7});
}

TEST(HostBuffer, RefusedReservationIsTheUsersError) {
  try {
    HostBuffer buffer(std::size_t{1} << 60);
    FAIL() << "no machine has so much";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("smaller context (-c)"));
  }
}

}  // namespace
}  // namespace glimpse
