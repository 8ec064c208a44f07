// Random operations on the cache against a model: per sequence and head a plain vector of slots; a mark is a deep copy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cache_rows.h"
#include "glimpse/base/error.h"
#include "glimpse/kv/cache.h"
#include "tests/support/test_names.h"

namespace glimpse::kv {
namespace {

using kernels::kPageTokens;

struct ModelSlot {
  std::int32_t position = 0;
  bool live = true;
  std::uint64_t stamp = 0;
};

struct ModelSequence {
  std::vector<std::vector<ModelSlot>> heads;  ///< [layer, head][slot]
  std::int64_t length = 0;
  bool any_freed(std::size_t head) const {
    return std::count_if(heads[head].begin(), heads[head].end(), [](const ModelSlot& slot) { return slot.live; }) !=
           length;
  }
};

struct ModelMark {
  Mark mark;
  ModelSequence saved;
};

struct Tracked {
  ModelSequence now;
  std::vector<ModelMark> marks;
};

void drop_empty_pages(ModelSequence& sequence) {
  for (auto& head : sequence.heads) {
    std::vector<ModelSlot> kept;
    for (std::size_t first = 0; first < head.size(); first += kPageTokens) {
      const std::size_t end = std::min<std::size_t>(first + kPageTokens, head.size());
      const bool full = end - first == kPageTokens;
      const bool empty = std::none_of(head.begin() + static_cast<std::ptrdiff_t>(first),
                                      head.begin() + static_cast<std::ptrdiff_t>(end),
                                      [](const ModelSlot& slot) { return slot.live; });
      if (full && empty) continue;
      kept.insert(kept.end(), head.begin() + static_cast<std::ptrdiff_t>(first),
                  head.begin() + static_cast<std::ptrdiff_t>(end));
    }
    head = std::move(kept);
  }
}

class Walk {
 public:
  Walk(const CacheShape& shape, std::uint32_t seed) : shape_(shape), cache_(shape), random_(seed) {
    cache_.open_tier(testing::TempDir());
  }

  void step() {
    if (tracked_.empty()) return create();
    if (chance(30)) put_away();
    const int kind = draw(0, 99);
    if (kind < 4) return create();
    if (kind < 10) return fork();
    if (kind < 14) return destroy();
    if (kind < 26) return mark();
    if (kind < 34) return restore();
    if (kind < 42) return commit();
    if (kind < 66) return free_some();
    if (kind < 74) return compact();
    if (kind < 78) return rewrite();
    if (kind < 80) return truncate();
    extend();
  }

  void compare() {
    std::set<kernels::PageId> in_use;
    for (const auto& [id, tracked] : tracked_) {
      ASSERT_EQ(cache_.length(id), tracked.now.length);
      for (int layer = 0; layer < shape_.layers; ++layer) {
        for (int head = 0; head < shape_.kv_heads; ++head) compare_head(id, layer, head, in_use);
      }
    }
    const CacheUsage usage = cache_.usage();
    ASSERT_LE(in_use.size(), usage.pages_total - usage.pages_free);
  }

  void destroy_all() {
    while (!tracked_.empty()) destroy();
  }

  Cache& cache() { return cache_; }
  int refusals() const { return refusals_; }
  int drops() const { return drops_; }
  int compactions() const { return compactions_; }
  int rewrites() const { return rewrites_; }
  int truncations() const { return truncations_; }
  std::int64_t put_away_pages() const { return put_away_pages_; }

 private:
  /// From numbers of its own, so that it changes no other choice.
  bool chance(unsigned of) { return away_random_() % of == 0; }
  int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  std::map<SequenceId, Tracked>::iterator any() {
    return std::next(tracked_.begin(), draw(0, static_cast<int>(tracked_.size()) - 1));
  }

  void create() {
    if (tracked_.size() >= 7) return destroy();
    Tracked& tracked = tracked_[cache_.create()];
    tracked.now.heads.resize(static_cast<std::size_t>(shape_.layers * shape_.kv_heads));
  }

  void fork() {
    if (tracked_.size() >= 7) return destroy();
    const auto source = any();
    Tracked copy{source->second.now, {}};
    drop_empty_pages(copy.now);
    const SequenceId id = cache_.fork(source->first);
    ASSERT_EQ(tracked_.count(id), 0u);
    tracked_[id] = std::move(copy);
  }

  void destroy() {
    const auto chosen = any();
    cache_.destroy(chosen->first);
    EXPECT_THROW(cache_.length(chosen->first), InternalError);
    tracked_.erase(chosen);
  }

  void extend() {
    const int kind = draw(0, 19);
    const std::int64_t tokens = kind < 12 ? draw(0, 5) : kind < 19 ? draw(1, 60) : draw(100, 900);
    const auto chosen = any();
    const bool sparing = chance(3);
    cache_.set_sparing(sparing);
    if (chosen->second.marks.empty() && chance(4)) cache_.trim(chosen->first);
    const CacheUsage before = cache_.usage();
    const std::int64_t needed = cache_.pages_to_extend(chosen->first, tokens);
    try {
      extend_with_rows(cache_, chosen->first, tokens, ++stamp_);
    } catch (const UserError& error) {
      ++refusals_;
      EXPECT_EQ(cache_.usage().pages_free, before.pages_free);
      EXPECT_THAT(error.what(), testing::HasSubstr("-c"));
      EXPECT_GT(needed, static_cast<std::int64_t>(before.pages_free));
      return compare();
    }
    EXPECT_LE(needed, static_cast<std::int64_t>(before.pages_free));
    if (sparing) {
      EXPECT_EQ(cache_.usage().pages_free + static_cast<std::size_t>(needed), before.pages_free);
    }
    ModelSequence& now = chosen->second.now;
    for (auto& head : now.heads) {
      for (std::int64_t i = 0; i < tokens; ++i) {
        head.push_back({static_cast<std::int32_t>(now.length + i), true, stamp_});
      }
    }
    now.length += tokens;
  }

  /// Changes nothing that the model knows. While it is away others write to its pages.
  void put_away() {
    const auto chosen = std::next(tracked_.begin(), static_cast<int>(away_random_() % tracked_.size()));
    if (!chosen->second.marks.empty()) return;
    const SequenceId id = chosen->first;
    std::int64_t pages = 0;
    for (const auto& head : chosen->second.now.heads) {
      pages += static_cast<std::int64_t>((head.size() + kPageTokens - 1) / kPageTokens);
    }
    const auto free_pages = [&] { return static_cast<std::int64_t>(cache_.usage().pages_free); };
    const std::int64_t held = cache_.pages_held(id), free_before = free_pages();
    ASSERT_GE(held, pages);  // and the reserve
    cache_.put_away(id, false);
    ASSERT_EQ(free_pages(), free_before + held - cache_.pages_held(id)) << "what others read stays";
    if (free_pages() >= pages) {  // it has own ones of them all afterwards
      cache_.put_away(id, true);
      ASSERT_EQ(cache_.pages_held(id), 0);
    }
    ASSERT_EQ(cache_.pages_away(id) + cache_.pages_held(id), pages);
    put_away_pages_ += cache_.pages_away(id);
    const SequenceId other = cache_.create();
    const std::int64_t free = free_pages(), heads = std::int64_t{shape_.layers} * shape_.kv_heads;
    extend_with_rows(cache_, other, free / heads * kPageTokens, ++stamp_);
    if (cache_.pages_away(id) > free % heads) {
      EXPECT_THROW(cache_.bring_back(id), CacheFull);
    }
    cache_.destroy(other);
    cache_.bring_back(id);
    ASSERT_EQ(cache_.pages_away(id), 0);
  }

  void free_some() {
    const auto chosen = any();
    ModelSequence& now = chosen->second.now;
    const int layer = draw(0, shape_.layers - 1);
    const int head = draw(0, shape_.kv_heads - 1);
    auto& slots = now.heads[static_cast<std::size_t>(layer * shape_.kv_heads + head)];
    if (slots.empty()) return;
    // Stretches, so that whole pages empty; with holes now and then.
    const int first = draw(0, static_cast<int>(slots.size()) - 1);
    const int last =
        std::min(first + (draw(0, 2) == 0 ? draw(0, 100) : draw(0, 3)), static_cast<int>(slots.size()) - 1);
    const int holes = draw(0, 2) == 0 ? 10 : 0;
    std::vector<std::int32_t> positions;
    for (int slot = first; slot <= last; ++slot) {
      ModelSlot& entry = slots[static_cast<std::size_t>(slot)];
      if (!entry.live || draw(1, 100) <= holes) continue;
      entry.live = false;
      positions.push_back(entry.position);
    }
    cache_.free_tokens(chosen->first, layer, head, positions);
    const std::size_t slots_before = slots.size();
    if (chosen->second.marks.empty()) drop_empty_pages(now);
    if (slots.size() != slots_before) ++drops_;
  }

  void compact() {
    const auto chosen = any();
    const int layer = draw(0, shape_.layers - 1);
    const int head = draw(0, shape_.kv_heads - 1);
    auto& slots = chosen->second.now.heads[static_cast<std::size_t>(layer * shape_.kv_heads + head)];
    const auto live = static_cast<std::size_t>(
        std::count_if(slots.begin(), slots.end(), [](const ModelSlot& slot) { return slot.live; }));
    const std::size_t freed = slots.size() - live;
    const bool worth = chosen->second.marks.empty() && freed >= 2 * kPageTokens && freed > live / 8;
    const std::size_t free_before = cache_.usage().pages_free;
    const bool done = cache_.compact(chosen->first, layer, head);
    ASSERT_TRUE(worth || !done);
    if (worth && free_before >= slots.size() / kPageTokens + 1) {
      ASSERT_TRUE(done);
    }
    if (!done) return;
    ++compactions_;
    slots.erase(std::remove_if(slots.begin(), slots.end(), [](const ModelSlot& slot) { return !slot.live; }),
                slots.end());
  }

  /// Writes the newest tokens anew: forks must keep theirs.
  void rewrite() {
    const auto chosen = any();
    ModelSequence& now = chosen->second.now;
    if (now.length == 0 || !chosen->second.marks.empty()) return;
    for (std::size_t head = 0; head < now.heads.size(); ++head) {
      if (now.any_freed(head)) return;
    }
    const std::int64_t tokens = draw(1, static_cast<int>(std::min<std::int64_t>(now.length, 70)));
    try {
      cache_.rewrite(chosen->first, tokens);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("-c"));
      return compare();
    }
    ++rewrites_;
    ++stamp_;
    for (std::size_t i = 0; i < now.heads.size(); ++i) {
      const int layer = static_cast<int>(i) / shape_.kv_heads;
      const int head = static_cast<int>(i) % shape_.kv_heads;
      for (std::int64_t at = now.length - tokens; at < now.length; ++at) {
        const auto slot = static_cast<std::int32_t>(at);
        write_row(cache_, chosen->first, {stamp_, layer, head, slot}, slot);
        now.heads[i][static_cast<std::size_t>(at)].stamp = stamp_;
      }
    }
  }

  /// Of as many tokens as no head has freed.
  void truncate() {
    const auto chosen = any();
    ModelSequence& now = chosen->second.now;
    auto least = static_cast<std::size_t>(now.length);
    for (const auto& head : now.heads) {
      auto position = static_cast<std::int32_t>(now.length);
      const auto freed = std::find_if(head.rbegin(), head.rend(), [&](const ModelSlot& slot) {
        return !slot.live || slot.position != --position;  // freed, or its page is gone
      });
      least = std::min(least, static_cast<std::size_t>(freed - head.rbegin()));
    }
    const int tokens = draw(0, static_cast<int>(std::min<std::size_t>(least, 20)));
    if (!chosen->second.marks.empty()) {
      EXPECT_THROW(cache_.truncate(chosen->first, tokens), InternalError);
      return;
    }
    if (static_cast<std::int64_t>(least) < now.length) {
      EXPECT_THROW(cache_.truncate(chosen->first, static_cast<std::int64_t>(least) + 1), InternalError);
    }
    cache_.truncate(chosen->first, tokens);
    now.length -= tokens;
    for (auto& head : now.heads) head.resize(head.size() - static_cast<std::size_t>(tokens));
    truncations_ += tokens > 0;
  }

  void mark() {
    const auto chosen = any();
    if (chosen->second.marks.size() >= 4) return commit();
    chosen->second.marks.push_back({cache_.mark(chosen->first), chosen->second.now});
  }

  /// Restores or commits a random mark of a random sequence; younger marks die with it.
  template <class Apply>
  void end_mark(const Apply& apply) {
    const auto chosen = any();
    auto& marks = chosen->second.marks;
    if (marks.empty()) return;
    const auto index = static_cast<std::size_t>(draw(0, static_cast<int>(marks.size()) - 1));
    const Mark newest = marks.back().mark;
    apply(chosen->second, index);
    marks.resize(index);
    EXPECT_THROW(cache_.restore(newest), InternalError);
    EXPECT_THROW(cache_.commit(newest), InternalError);
    if (marks.empty()) drop_empty_pages(chosen->second.now);
  }

  void restore() {
    end_mark([&](Tracked& tracked, std::size_t index) {
      cache_.restore(tracked.marks[index].mark);
      tracked.now = tracked.marks[index].saved;
    });
  }

  void commit() {
    end_mark([&](Tracked& tracked, std::size_t index) { cache_.commit(tracked.marks[index].mark); });
  }

  void compare_head(SequenceId id, int layer, int head, std::set<kernels::PageId>& in_use) {
    const ModelSequence& now = tracked_.at(id).now;
    const auto index = static_cast<std::size_t>(layer * shape_.kv_heads + head);
    const auto& slots = now.heads[index];
    const auto view = cache_.view(id, layer, head);
    const std::string where = "sequence " + std::to_string(id) + " layer " + std::to_string(layer) + " head " +
                              std::to_string(head) + " slot ";
    ASSERT_EQ(view.slots, static_cast<std::int32_t>(slots.size())) << where;
    ASSERT_EQ(view.positions != nullptr || slots.empty(), now.any_freed(index) || slots.empty()) << where;
    std::int64_t live = 0;
    for (std::int32_t slot = 0; slot < view.slots; ++slot) {
      const ModelSlot& expected = slots[static_cast<std::size_t>(slot)];
      const std::int32_t position = view.positions == nullptr ? slot : view.positions[slot];
      ASSERT_EQ(position, expected.live ? expected.position : -1) << where << slot;
      ASSERT_TRUE(row_is(cache_, id, {expected.stamp, layer, head, expected.position}, slot)) << where << slot;
      live += expected.live ? 1 : 0;
      if (slot % kPageTokens == 0) in_use.insert(view.pages[slot / kPageTokens]);
    }
    ASSERT_EQ(cache_.live_tokens(id, layer, head), live) << where;
  }

  CacheShape shape_;
  Cache cache_;
  std::mt19937 random_;
  std::mt19937 away_random_{5};
  std::map<SequenceId, Tracked> tracked_;
  std::uint64_t stamp_ = 0;
  int refusals_ = 0;
  int drops_ = 0;
  int compactions_ = 0;
  int rewrites_ = 0;
  int truncations_ = 0;
  std::int64_t put_away_pages_ = 0;
};

struct WalkCase {
  KvType type;
  std::uint32_t seed;
  std::int64_t capacity;
};

void PrintTo(const WalkCase& walk, std::ostream* out) {
  *out << name(walk.type) << " " << walk.capacity;
}

class CacheWalk : public testing::TestWithParam<WalkCase> {};

TEST_P(CacheWalk, MatchesTheModel) {
  CacheShape shape;
  shape.layers = 2;
  shape.kv_heads = 3;
  shape.format = {GetParam().type, 8};
  shape.capacity_tokens = GetParam().capacity;
  Walk walk(shape, GetParam().seed);
  for (int step = 0; step < 5000; ++step) {
    walk.step();
    if (HasFatalFailure()) FAIL() << "step " << step;
    if (step % 12 == 0) walk.compare();
    if (HasFatalFailure()) FAIL() << "after step " << step;
  }
  EXPECT_GT(walk.refusals(), 0);
  EXPECT_GT(walk.drops(), 0);
  EXPECT_GT(walk.compactions(), 0);
  EXPECT_GT(walk.rewrites(), 0);
  EXPECT_GT(walk.truncations(), 0);
  EXPECT_GT(walk.put_away_pages(), 0);

  walk.destroy_all();
  Cache& cache = walk.cache();
  cache.set_sparing(false);
  ASSERT_EQ(cache.usage().tier_bytes, 0U);
  ASSERT_EQ(cache.usage().pages_free, cache.usage().pages_total);
  // All runs are whole again: one sequence takes everything, in order.
  const SequenceId all = cache.create();
  const auto tokens = static_cast<std::int64_t>(cache.usage().pages_total) / 6 * kPageTokens;
  cache.extend(all, tokens);
  EXPECT_EQ(cache.usage().pages_free, 0u);
  for (int index = 0; index < 6; ++index) {
    const auto view = cache.view(all, index / 3, index % 3);
    for (std::int32_t page = 0; page < view.slots / kPageTokens; ++page) {
      EXPECT_EQ(view.pages[page] % kRunPages, static_cast<kernels::PageId>(page % kRunPages));
    }
  }
}

std::vector<WalkCase> walk_cases() {
  std::vector<WalkCase> cases;
  std::uint32_t seed = 1;
  for (const std::int64_t capacity : {600, 1200, 1800}) {
    for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
      cases.push_back({type, seed++, capacity});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheWalk, testing::ValuesIn(walk_cases()), PrintedName());

}  // namespace
}  // namespace glimpse::kv
