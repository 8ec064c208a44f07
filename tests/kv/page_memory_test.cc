// A cache whose planes the host cannot read in place, as a device's: every byte goes through PageMemory.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "glimpse/kv/cache.h"
#include "glimpse/kv/page_pool.h"

namespace glimpse::kv {
namespace {

/// Its planes have addresses that lead nowhere.
class FarMemory final : public PageMemory {
 public:
  explicit FarMemory(std::size_t plane_bytes)
      : bytes_{std::vector<std::byte>(plane_bytes), std::vector<std::byte>(plane_bytes)} {}
  kernels::Place place() const override { return kernels::Place::device; }
  std::byte* plane(Plane which) const override {
    return reinterpret_cast<std::byte*>(which == Plane::k ? 0x1000 : 0x2000);
  }
  void copy(Plane which, std::size_t from, std::size_t to, std::size_t bytes) override {
    std::memcpy(of(which) + to, of(which) + from, bytes);
  }
  void read(Plane which, std::size_t from, std::span<std::byte> to) const override {
    std::memcpy(to.data(), const_cast<FarMemory*>(this)->of(which) + from, to.size());
  }
  void write(Plane which, std::size_t to, std::span<const std::byte> from) override {
    std::memcpy(of(which) + to, from.data(), from.size());
  }

 private:
  std::byte* of(Plane which) { return bytes_[which == Plane::k ? 0 : 1].data(); }
  std::vector<std::byte> bytes_[2];
};

class FarPages : public testing::Test {
 protected:
  static constexpr int kLayers = 2, kHeads = 3;
  FarPages() { id_ = cache_.create(); }

  std::size_t page_bytes() const { return cache_.shape().format.page_bytes(); }
  /// The bytes of a page, a function of the arguments alone.
  std::vector<std::byte> content(const HeadPage& at, Plane plane, std::int32_t pages) const {
    std::vector<std::byte> bytes(page_bytes() * static_cast<std::size_t>(pages));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const int page = at.page + static_cast<int>(i / page_bytes());
      const int place = static_cast<int>(i % page_bytes()) % 251;
      bytes[i] =
          static_cast<std::byte>(31 * at.layer + 17 * at.head + 7 * page + (plane == Plane::v ? 128 : 0) + place);
    }
    return bytes;
  }
  void write_all(SequenceId id, std::int32_t pages) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        for (const Plane plane : {Plane::k, Plane::v}) {
          cache_.write_pages(id, {layer, head, 0}, plane, content({layer, head, 0}, plane, pages));
        }
      }
    }
  }
  void expect_all(SequenceId id, std::int32_t pages) {
    std::vector<std::byte> space;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int head = 0; head < kHeads; ++head) {
        for (std::int32_t page = 0; page < pages; ++page) {
          for (const Plane plane : {Plane::k, Plane::v}) {
            const std::byte* got = cache_.read_page(id, {layer, head, page}, plane, space);
            const auto want = content({layer, head, page}, plane, 1);
            ASSERT_EQ(std::memcmp(got, want.data(), want.size()), 0) << layer << " " << head << " " << page;
          }
        }
      }
    }
  }

  Cache cache_{{kLayers, kHeads, {KvType::q8_0, 16}, 1024},
               [](std::size_t bytes) { return std::make_unique<FarMemory>(bytes); }};
  SequenceId id_ = -1;
};

TEST_F(FarPages, KeepTheirBytes) {
  cache_.extend(id_, 20 * kernels::kPageTokens);
  write_all(id_, 20);
  expect_all(id_, 20);
}

TEST_F(FarPages, AreCopiedOnWriteAndOverFreedSlots) {
  cache_.extend(id_, 20 * kernels::kPageTokens - 5);
  write_all(id_, 20);
  const SequenceId fork = cache_.fork(id_);
  cache_.extend(fork, 30);  // copies the shared last page
  EXPECT_NE(cache_.view(fork, 0, 0).pages[19], cache_.view(id_, 0, 0).pages[19]);
  expect_all(id_, 20);
  expect_all(fork, 20);
  std::vector<std::int32_t> freed;
  for (std::int32_t position = 16; position < 9 * kernels::kPageTokens; position += 2) freed.push_back(position);
  cache_.destroy(fork);
  cache_.free_tokens(id_, 1, 2, freed);
  ASSERT_TRUE(cache_.compact(id_, 1, 2));
  // Slot 16 + i is what was row 17 + 2 i: slot 8 of page 1 the first odd row of page 2.
  std::vector<std::byte> space;
  const std::byte* page = cache_.read_page(id_, {1, 2, 1}, Plane::k, space);
  const auto want = content({1, 2, 2}, Plane::k, 1);
  const std::size_t row_bytes = cache_.shape().format.row_bytes();
  EXPECT_EQ(std::memcmp(page + 8 * row_bytes, want.data() + row_bytes, row_bytes), 0);
}

TEST_F(FarPages, GoToTheTierAndComeBack) {
  cache_.open_tier(testing::TempDir());
  cache_.extend(id_, 10 * kernels::kPageTokens);
  write_all(id_, 10);
  const std::vector<HeadPage> some{{1, 1, 1}, {1, 1, 4}, {1, 1, 5}};
  cache_.spill(id_, some);
  EXPECT_EQ(cache_.waiting_pages(id_, 1, 1), 3);
  expect_all(id_, 10);
  cache_.recall(id_, some);
  expect_all(id_, 10);
  cache_.put_away(id_, true);
  cache_.bring_back(id_);
  expect_all(id_, 10);
}

}  // namespace
}  // namespace glimpse::kv
