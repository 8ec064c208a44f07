// Pages that wait in the tier against the bytes that were written: spill, recall, forks, marks, and what goes wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "cache_rows.h"
#include "glimpse/base/error.h"
#include "glimpse/kv/cache.h"
#include "glimpse/kv/inspect.h"
#include "glimpse/kv/page_pool.h"
#include "tests/support/test_names.h"

namespace glimpse::kv {
namespace {

using kernels::kPageTokens;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

CacheShape shape_of(KvType type, std::int64_t capacity) {
  CacheShape shape;
  shape.layers = 2;
  shape.kv_heads = 2;
  shape.format = {type, 16};
  shape.capacity_tokens = capacity;
  return shape;
}

std::filesystem::path temporary() {
  return ::testing::TempDir();
}

std::vector<HeadPage> of_head(int layer, int head, const std::vector<std::int32_t>& pages) {
  std::vector<HeadPage> all;
  for (const std::int32_t page : pages) all.push_back({layer, head, page});
  return all;
}

/// A sequence's rows by position: the stamp that each was written with.
using Stamps = std::vector<std::uint64_t>;

class TierWalk : public ::testing::TestWithParam<KvType> {
 protected:
  TierWalk() : cache_(shape_of(GetParam(), 4096)) { cache_.open_tier(temporary()); }

  int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  auto any() { return std::next(sequences_.begin(), draw(0, static_cast<int>(sequences_.size()) - 1)); }

  void extend(SequenceId id, std::int64_t tokens) {
    extend_with_rows(cache_, id, tokens, ++stamp_);
    sequences_[id].resize(sequences_[id].size() + static_cast<std::size_t>(tokens), stamp_);
  }

  bool waits(SequenceId id, const HeadPage& page) const {
    return cache_.view(id, page.layer, page.head).pages[page.page] == kNoPage;
  }

  /// Rows of resident pages where they are, of the others through the tier.
  void compare(SequenceId id) {
    const Stamps& stamps = sequences_.at(id);
    const kernels::KvFormat& format = cache_.shape().format;
    for (int layer = 0; layer < 2; ++layer) {
      for (int head = 0; head < 2; ++head) {
        std::int64_t waiting = 0;
        for (std::int32_t at = 0; at < static_cast<std::int32_t>(stamps.size()); ++at) {
          const RowName row{stamps[static_cast<std::size_t>(at)], layer, head, at};
          const std::int32_t page = at / kPageTokens;
          if (!waits(id, {layer, head, page})) {
            ASSERT_TRUE(row_is(cache_, id, row, at)) << at;
          } else {
            waiting += at % kPageTokens == 0;
          }
          const auto bits = cache_.waiting_bits(id, layer, head);
          const auto word = static_cast<std::size_t>(page / 64);
          ASSERT_EQ(word < bits.size() && (bits[word] >> (page % 64) & 1) != 0, waits(id, {layer, head, page}));
          for (const bool value : {false, true}) {
            const auto expected = row_content(format, row, value);
            const std::byte* plane = cache_.read_page(id, {layer, head, page}, value ? Plane::v : Plane::k, unused_);
            const auto slot = static_cast<std::size_t>(at % kPageTokens);
            ASSERT_EQ(std::memcmp(plane + slot * format.row_bytes(), expected.data(), format.row_bytes()), 0) << at;
          }
        }
        ASSERT_EQ(cache_.waiting_pages(id, layer, head), waiting);
        ASSERT_EQ(cache_.live_tokens(id, layer, head), static_cast<std::int64_t>(stamps.size()));
      }
    }
  }

  Cache cache_;
  std::vector<std::byte> unused_;  ///< the host reads pages in place
  std::mt19937 random_{17};
  std::uint64_t stamp_ = 0;
  std::map<SequenceId, Stamps> sequences_;
};

TEST_P(TierWalk, KeepsEveryByte) {
  int spilled = 0, recalled = 0, restored = 0, away = 0;
  for (int step = 0; step < 1500; ++step) {
    if (sequences_.empty()) sequences_[cache_.create()];
    const auto chosen = any();
    const SequenceId id = chosen->first;
    const int layer = draw(0, 1), head = draw(0, 1), kind = draw(0, 99);
    const auto full = static_cast<std::int32_t>(chosen->second.size()) / kPageTokens;
    std::vector<std::int32_t> resident, waiting;
    for (std::int32_t page = 0; page < full; ++page) {
      (waits(id, {layer, head, page}) ? waiting : resident).push_back(page);
    }
    const auto sample = [&](std::vector<std::int32_t>& pages) {
      std::erase_if(pages, [&](std::int32_t) { return draw(0, 2) == 0; });
    };
    if (kind < 30 && chosen->second.size() < 500) {
      extend(id, draw(1, 60));
    } else if (kind < 55) {
      sample(resident);
      const std::size_t free = cache_.usage().pages_free;
      cache_.spill(id, of_head(layer, head, resident));
      ASSERT_GE(cache_.usage().pages_free, free);
      if (sequences_.size() == 1) {
        ASSERT_EQ(cache_.usage().pages_free, free + resident.size());
      }
      spilled += static_cast<int>(resident.size());
    } else if (kind < 75) {
      sample(waiting);
      cache_.recall(id, of_head(layer, head, waiting));
      recalled += static_cast<int>(waiting.size());
    } else if (kind < 80) {
      cache_.recall_all(id);
      ASSERT_EQ(cache_.waiting_pages(id, layer, head), 0);
    } else if (kind < 86 && sequences_.size() < 4) {
      const Stamps copy = chosen->second;
      sequences_[cache_.fork(id)] = copy;
    } else if (kind < 88) {  // what waited before waits after it, and a page that is written to has no copy left
      cache_.put_away(id, draw(0, 1) == 0);
      away += static_cast<int>(cache_.pages_away(id));
      const SequenceId other = cache_.create();
      extend_with_rows(cache_, other, 300, ++stamp_);
      cache_.destroy(other);
      if (draw(0, 5) == 0) {  // never brought back
        cache_.destroy(id);
        sequences_.erase(id);
        continue;
      }
      cache_.bring_back(id);
      for (const std::int32_t page : waiting) ASSERT_TRUE(waits(id, {layer, head, page}));
    } else if (kind < 91) {
      cache_.destroy(id);
      sequences_.erase(id);
      continue;
    } else {  // what waits when a mark is taken may be recalled under it; nothing is spilled then
      const Stamps before = chosen->second;
      const Mark mark = cache_.mark(id);
      EXPECT_FALSE(cache_.may_spill(id));
      if (!resident.empty()) {
        EXPECT_THROW(cache_.spill(id, of_head(layer, head, resident)), InternalError);
      }
      extend(id, draw(1, 40));
      sample(waiting);
      cache_.recall(id, of_head(layer, head, waiting));
      if (draw(0, 1) == 0) {
        cache_.restore(mark);
        sequences_[id] = before;
        ++restored;
      } else {
        cache_.commit(mark);
      }
    }
    compare(id);
    if (HasFatalFailure()) FAIL() << "step " << step;
    if (step % 20 == 0) {
      for (const auto& [other, stamps] : sequences_) compare(other);
    }
  }
  EXPECT_GT(spilled, 100);
  EXPECT_GT(recalled, 100);
  EXPECT_GT(restored, 10);
  EXPECT_GT(away, 100);
  for (const auto& [id, stamps] : sequences_) cache_.destroy(id);
  EXPECT_EQ(cache_.usage().pages_free, cache_.usage().pages_total);
  EXPECT_EQ(cache_.usage().tier_bytes, 0u) << "every slot of the file is free again";
}

INSTANTIATE_TEST_SUITE_P(Types, TierWalk, ::testing::Values(KvType::bf16, KvType::q8_0), PrintedName());

TEST(Tier, SingleRowsAreReadWhereTheyWait) {
  for (const KvType type : {KvType::f32, KvType::q8_0}) {
    Cache cache(shape_of(type, 512));
    cache.open_tier(temporary());
    const SequenceId id = cache.create();
    extend_with_rows(cache, id, 100, 1);
    const auto key = key_at(cache, id, 1, 0, 37);
    const auto value = value_at(cache, id, 1, 0, 37);
    const std::vector<std::int32_t> pages{0, 2, 3};
    cache.spill(id, of_head(1, 0, pages));
    EXPECT_EQ(std::memcmp(key_at(cache, id, 1, 0, 37).data(), key.data(), key.size() * sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(value_at(cache, id, 1, 0, 37).data(), value.data(), key.size() * sizeof(float)), 0);
  }
}

TEST(Tier, AnUnchangedPageIsWrittenOnce) {
  Cache cache(shape_of(KvType::bf16, 512));
  cache.open_tier(temporary());
  const SequenceId id = cache.create();
  extend_with_rows(cache, id, 64, 1);
  const std::vector<std::int32_t> pages{1, 2};
  cache.spill(id, of_head(0, 0, pages));
  const std::size_t bytes = cache.usage().tier_bytes;
  EXPECT_EQ(bytes, 2 * 2 * cache.shape().format.page_bytes());
  cache.recall(id, of_head(0, 0, pages));
  cache.spill(id, of_head(0, 0, pages));
  EXPECT_EQ(cache.usage().tier_bytes, bytes);
  cache.recall_all(id);
  EXPECT_EQ(cache.usage().tier_bytes, 0u);
  cache.rewrite(id, 60);  // nothing of the old bytes may come back
  for (std::int32_t at = 4; at < 64; ++at) write_row(cache, id, {2, 0, 0, at}, at);
  cache.spill(id, of_head(0, 0, pages));
  cache.recall(id, of_head(0, 0, pages));
  for (std::int32_t at = 4; at < 64; ++at) EXPECT_TRUE(row_is(cache, id, {2, 0, 0, at}, at));
}

TEST(Tier, AFullPoolRefusesToRecall) {
  Cache cache(shape_of(KvType::bf16, 256));
  cache.open_tier(temporary());
  const SequenceId id = cache.create();
  extend_with_rows(cache, id, 256, 1);
  const std::vector<std::int32_t> pages{0, 1, 2, 3};
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) cache.spill(id, of_head(layer, head, pages));
  }
  const SequenceId other = cache.create();
  extend_with_rows(cache, other, 64, 2);
  EXPECT_THAT([&] { cache.recall(id, of_head(0, 0, pages)); }, ThrowsMessage<UserError>(HasSubstr("4 pages wait")));
  EXPECT_THAT([&] { cache.recall_all(id); }, ThrowsMessage<UserError>(HasSubstr("-c")));
  EXPECT_EQ(cache.waiting_pages(id, 0, 0), 4);
  cache.destroy(other);
  cache.recall_all(id);
  EXPECT_TRUE(row_is(cache, id, {1, 1, 1, 63}, 63));
}

TEST(Tier, FoldersThatCannotHoldItAreNamed) {
  Cache cache(shape_of(KvType::bf16, 256));
  const auto missing = temporary() / "no-such-folder";
  EXPECT_THAT([&] { cache.open_tier(missing); }, ThrowsMessage<UserError>(HasSubstr("no-such-folder")));
  const auto file = temporary() / "a-file";
  std::ofstream(file) << "x";
  EXPECT_THAT([&] { cache.open_tier(file); }, ThrowsMessage<UserError>(HasSubstr("a folder that can be written to")));
  if (::geteuid() == 0) return;  // root writes everywhere
  const auto closed = temporary() / "closed-folder";
  std::filesystem::create_directories(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::owner_read);
  EXPECT_THAT([&] { cache.open_tier(closed); }, ThrowsMessage<UserError>(HasSubstr("closed-folder")));
}

TEST(Tier, LeavesNoFileBehind) {
  const auto folder = temporary() / "tier-folder";
  std::filesystem::create_directories(folder);
  Cache cache(shape_of(KvType::bf16, 256));
  cache.open_tier(folder);
  cache.open_tier("/nowhere");  // open already
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

/// A limit on the size of files stands for a full disk.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST(Tier, AFullDiskIsAnErrorBeforeAnythingChanges) {
  Cache cache(shape_of(KvType::bf16, 1024));
  cache.open_tier(temporary());
  const SequenceId id = cache.create();
  extend_with_rows(cache, id, 128, 1);
  const std::vector<std::int32_t> pages{0, 1, 2};
  const std::size_t free = cache.usage().pages_free;
  {
    const FileLimit limit(4096);
    EXPECT_THAT([&] { cache.spill(id, of_head(0, 1, pages)); },
                ThrowsMessage<UserError>(
                    testing::AllOf(HasSubstr(temporary().parent_path().string()), HasSubstr("give another folder"))));
  }
  EXPECT_EQ(cache.usage().pages_free, free);
  EXPECT_EQ(cache.waiting_pages(id, 0, 1), 0);
  EXPECT_TRUE(row_is(cache, id, {1, 0, 1, 20}, 20));
  cache.spill(id, of_head(0, 1, pages));
  EXPECT_EQ(cache.usage().pages_free, free + 3);
}

}  // namespace
}  // namespace glimpse::kv
