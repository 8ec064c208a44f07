// Digests that hang on the cache's pages: whatever happens to pages, an index finds there what its tokens' keys say,
// and nothing that a page has is made again.
#include "glimpse/kv/page_digests.h"

#include <gmock/gmock.h>

#include <array>
#include <latch>
#include <memory>
#include <thread>
#include <vector>

#include "glimpse/kv/cache.h"
#include "glimpse/kv/index/landmarks.h"
#include "glimpse/kv/index/page_bounds.h"
#include "index/support.h"

namespace glimpse::kv::testing {
namespace {

constexpr int kHeads = 2, kDim = 8;

/// A key whose values bf16 holds exactly, so that sums over blocks are exact, too.
using Key = std::array<float, kDim>;

plan::Selector blocks_of(int block, plan::Digest digest) {
  plan::Selector selector = selector_of(plan::Source::page_bounds, 64, block);
  selector.terms[0].index.digest = digest;
  return selector;
}

/// What the tests' plans ask for: several kinds, and blocks that are smaller than a page, as large, and larger.
std::vector<plan::Selector> all_selectors() {
  return {blocks_of(16, plan::Digest::min_max),        blocks_of(8, plan::Digest::min_max),
          blocks_of(24, plan::Digest::min_max),        blocks_of(64, plan::Digest::min_max),
          blocks_of(16, plan::Digest::mean_deviation), blocks_of(32, plan::Digest::sphere),
          selector_of(plan::Source::landmarks, 64, 8)};
}

const Digests& digests_of(const KeyIndex& index) {
  if (const auto* const blocks = dynamic_cast<const PageBounds*>(&index)) return blocks->digests();
  return dynamic_cast<const Landmarks&>(index).digests();
}

/// The index over one head's keys, which are in the cache, and their definition.
void expect_digests(const KeyIndex& index, int block, std::span<const Key> keys) {
  const Digests& digests = digests_of(index);
  ASSERT_LE(std::int64_t{digests.count()} * block, static_cast<std::int64_t>(keys.size()));
  for (std::int32_t at = 0; at < digests.count(); ++at) {
    const auto of_block = keys.subspan(static_cast<std::size_t>(at * block), static_cast<std::size_t>(block));
    const std::vector<float> row = digests.row(at);
    const bool deviates = digests.kind() == DigestKind::mean_deviation;
    const std::vector<float> variances = deviates ? digests.variances(at) : std::vector<float>();
    for (std::size_t i = 0; i < kDim; ++i) {
      float least = of_block[0][i], most = least;
      double sum = 0, squares = 0;
      for (const Key& key : of_block) {
        least = std::min(least, key[i]);
        most = std::max(most, key[i]);
        sum += key[i];
        squares += static_cast<double>(key[i]) * key[i];
      }
      const double mean = sum / block;
      if (digests.kind() == DigestKind::min_max) {
        ASSERT_EQ(row[i], least) << "block " << at << " of " << block;
        ASSERT_EQ(row[kDim + i], most) << "block " << at << " of " << block;
      } else if (digests.kind() == DigestKind::sphere) {
        ASSERT_EQ(row[i], 0.5F * (least + most)) << "block " << at << " of " << block;
      } else {
        ASSERT_NEAR(row[i], mean, 1e-5) << "block " << at << " of " << block;
      }
      if (deviates) {
        ASSERT_NEAR(variances[i], squares / block - mean * mean, 1e-3) << "block " << at;
      }
    }
    if (digests.kind() == DigestKind::sphere) {
      double radius = 0;
      for (const Key& key : of_block) {
        Row off(kDim);
        for (std::size_t i = 0; i < kDim; ++i) off[i] = key[i] - row[i];
        radius = std::max(radius, norm(off));
      }
      ASSERT_NEAR(digests.radius(at), radius, 1e-4) << "block " << at;
    }
  }
}

/// A sequence of the cache, its keys, [head][token], and indices over them, [head][selector].
struct Tracked {
  SequenceId id = -1;
  std::array<std::vector<Key>, kHeads> keys;
  std::array<std::vector<std::unique_ptr<KeyIndex>>, kHeads> indices;
  std::int64_t prompt = 0;

  std::int64_t length() const { return static_cast<std::int64_t>(keys[0].size()); }
};

class Pages {
 public:
  explicit Pages(std::uint64_t seed)
      : made_(seed),
        cache_({.layers = 1, .kv_heads = kHeads, .format = {KvType::bf16, kDim}, .capacity_tokens = 8192}) {
    cache_.open_tier(::testing::TempDir());
  }

  Cache& cache() { return cache_; }
  Made& made() { return made_; }
  std::int64_t digests_made() const { return cache_.usage().digests_made; }

  void write(const Tracked& to, std::int64_t first) {
    for (int head = 0; head < kHeads; ++head) {
      const kernels::HeadView view = cache_.view(to.id, 0, head);
      for (std::int64_t t = first; t < to.length(); ++t) {
        const Key& key = to.keys[static_cast<std::size_t>(head)][static_cast<std::size_t>(t)];
        kernels::ref::append(cache_.shape().format, {.head = &view,
                                                     .k = key.data(),
                                                     .v = key.data(),
                                                     .row_stride = 0,
                                                     .slot = static_cast<std::int32_t>(t),
                                                     .rows = 1});
      }
    }
  }
  void append(Tracked& to, std::int64_t tokens) {
    const std::int64_t before = to.length();
    for (auto& keys : to.keys) {
      for (std::int64_t t = 0; t < tokens; ++t) keys.push_back(key());
    }
    cache_.extend(to.id, tokens);
    write(to, before);
  }
  void correct(Tracked& of, std::int64_t tokens) {
    const std::int64_t first = of.length() - tokens;
    cache_.recall_all(of.id);
    cache_.rewrite(of.id, tokens);
    for (auto& keys : of.keys) {
      for (std::int64_t t = first; t < of.length(); ++t) keys[static_cast<std::size_t>(t)] = key();
    }
    write(of, first);
    for_each(of, [&](KeyIndex& index, const KeySource& source, int) { index.refresh(source, first, of.length()); });
  }
  /// New ones, of all selectors, which hold nothing.
  void plan(Tracked& of) {
    of.prompt = of.length();
    for (auto& indices : of.indices) {
      indices.clear();
      for (const plan::Selector& selector : all_selectors()) indices.push_back(make_index(selector, kDim));
    }
  }
  /// A sequence of so many tokens, whose indices have taken them in.
  Tracked open(std::int64_t tokens) {
    Tracked made;
    made.id = cache_.create();
    append(made, tokens);
    plan(made);
    grow(made);
    return made;
  }
  void grow(Tracked& of) {
    for_each(of, [&](KeyIndex& index, const KeySource& source, int) { index.extend(source, of.length()); });
  }
  void expect_right(Tracked& of) {
    for_each(of, [&](KeyIndex& index, const KeySource&, int block) {
      expect_digests(index, block, of.keys[static_cast<std::size_t>(head_)]);
    });
  }
  Tracked fork(const Tracked& source, bool same_plan) {
    Tracked fork;
    fork.id = cache_.fork(source.id);
    fork.keys = source.keys;
    fork.prompt = source.prompt;
    for (std::size_t head = 0; head < kHeads && same_plan; ++head) {
      for (const auto& index : source.indices[head]) fork.indices[head].push_back(index->clone());
    }
    if (!same_plan) plan(fork);
    return fork;
  }

 private:
  Key key() {
    Key key;
    for (float& value : key) value = static_cast<float>(made_.below(255) - 127) / 8;
    return key;
  }
  template <class Work>
  void for_each(Tracked& of, const Work& work) {
    const std::vector<plan::Selector> selectors = all_selectors();
    for (head_ = 0; head_ < kHeads; ++head_) {
      const kernels::HeadView view = cache_.view(of.id, 0, head_);
      const KeySource source{&view, cache_.shape().format, {}, of.prompt, cache_.digests()};
      auto& indices = of.indices[static_cast<std::size_t>(head_)];
      for (std::size_t i = 0; i < indices.size(); ++i) work(*indices[i], source, selectors[i].block);
    }
  }

  Made made_;
  Cache cache_;
  int head_ = 0;
};

std::int64_t blocks_in(std::int64_t tokens) {
  std::int64_t blocks = 0;
  for (const plan::Selector& selector : all_selectors()) blocks += tokens / selector.block;
  return blocks * kHeads;
}

TEST(PageDigests, AreMadeOnceForAllWhoReadThePages) {
  Pages pages(1);
  Tracked first = pages.open(700);
  EXPECT_EQ(pages.digests_made(), blocks_in(700));
  Tracked other = pages.fork(first, false);
  pages.grow(other);
  pages.expect_right(other);
  EXPECT_EQ(pages.digests_made(), blocks_in(700)) << "what knows of no index";
  Tracked same = pages.fork(first, true);
  pages.grow(same);
  pages.expect_right(same);
  EXPECT_EQ(pages.digests_made(), blocks_in(700)) << "what has a copy of the index";
  // Nobody keeps an index, and a prefix is read inside a page.
  Tracked kept = pages.fork(first, false);
  for (Tracked* one : {&first, &same, &other}) pages.cache().destroy(one->id);
  for (auto& keys : kept.keys) keys.resize(500);
  pages.cache().truncate(kept.id, 200);
  pages.plan(kept);
  pages.grow(kept);
  pages.expect_right(kept);
  EXPECT_EQ(pages.digests_made(), blocks_in(700));
  EXPECT_GT(pages.cache().digest_bytes(kept.id), 0U);
}

TEST(PageDigests, OfPagesThatAreReadAlreadyAreMadeOnce) {
  Pages pages(7);
  Tracked rows;
  rows.id = pages.cache().create();
  pages.append(rows, 704);  // whole pages: what is left of one is not shared
  Tracked first = pages.fork(rows, false), second = pages.fork(rows, false);
  for (Tracked* one : {&first, &second}) {
    pages.append(*one, 3);
    pages.grow(*one);
    pages.expect_right(*one);
  }
  EXPECT_EQ(pages.digests_made(), blocks_in(704));
}

TEST(PageDigests, OfForksThatGoOnAreTheirOwn) {
  Pages pages(2);
  Tracked source = pages.open(450);
  Tracked fork = pages.fork(source, true);
  for (const std::int64_t tokens : {30, 40, 330}) {
    for (Tracked* one : {&source, &fork}) pages.append(*one, tokens);
    for (Tracked* one : {&source, &fork}) pages.grow(*one);
    for (Tracked* one : {&source, &fork}) pages.expect_right(*one);
  }
}

TEST(PageDigests, WaitWithTheirPages) {
  Pages pages(3);
  Tracked source = pages.open(320);
  const std::int64_t made = pages.digests_made();
  std::vector<HeadPage> some;
  for (int page = 0; page < 20; ++page) some.push_back({0, 1, page});
  for (int page = 2; page < 11; ++page) some.push_back({0, 0, page});
  pages.cache().spill(source.id, some);
  Tracked fork = pages.fork(source, false);
  pages.cache().recall_all(fork.id);
  pages.grow(fork);
  pages.expect_right(fork);
  pages.cache().put_away(fork.id, true);
  pages.expect_right(fork);
  pages.cache().bring_back(fork.id);
  Tracked back = pages.fork(fork, false);
  pages.cache().recall_all(source.id);
  pages.cache().destroy(source.id);
  pages.cache().destroy(fork.id);
  pages.grow(back);
  pages.expect_right(back);
  EXPECT_EQ(pages.digests_made(), made);
}

TEST(PageDigests, GoWithTheirPages) {
  Pages pages(4);
  Tracked source = pages.open(200);
  pages.cache().destroy(source.id);
  Tracked next;
  next.id = pages.cache().create();
  pages.append(next, 200);
  EXPECT_EQ(pages.cache().digest_bytes(next.id), 0U);
  pages.plan(next);
  pages.grow(next);
  pages.expect_right(next);
  EXPECT_EQ(pages.digests_made(), 2 * blocks_in(200));
}

TEST(PageDigests, OfASavedIndexHangOnThePagesThatItIsReadFor) {
  Pages pages(5);
  Tracked source = pages.open(700);
  // In pieces: what is saved does not show where digests lie.
  Tracked pieces = pages.fork(source, false);
  pages.grow(pieces);
  for (Tracked* one : {&source, &pieces}) pages.append(*one, 1);
  ByteWriter whole, parts;
  source.indices[0][0]->save(whole);
  pieces.indices[0][0]->save(parts);
  EXPECT_TRUE(std::ranges::equal(whole.bytes(), parts.bytes()));

  Tracked loaded;
  loaded.id = pages.cache().create();
  loaded.keys = source.keys;
  pages.cache().extend(loaded.id, loaded.length());
  pages.write(loaded, 0);
  const plan::Selector selector = all_selectors()[0];
  auto index = make_index(selector, kDim);
  ByteReader from(whole.bytes(), "a test");
  index->load(from, {KvType::bf16, 701, 700});
  const std::int64_t made = pages.digests_made();
  const kernels::HeadView view = pages.cache().view(loaded.id, 0, 0);
  index->extend({&view, pages.cache().shape().format, {}, 700, pages.cache().digests()}, 701);
  expect_digests(*index, selector.block, loaded.keys[0]);
  EXPECT_EQ(pages.digests_made(), made + 43);
  EXPECT_EQ(pages.cache().digest_bytes(loaded.id), 43U * 2 * kDim * 2);
}

TEST(PageDigests, AreRightWhateverHappensToPages) {
  for (std::uint64_t seed = 10; seed < 22; ++seed) {
    SCOPED_TRACE(seed);
    Pages pages(seed);
    Made& made = pages.made();
    std::vector<Tracked> all;
    for (int step = 0; step < 250; ++step) {
      if (all.empty() || (all.size() < 5 && made.below(12) == 0)) {
        all.emplace_back().id = pages.cache().create();
        pages.append(all.back(), 1 + made.below(200));
        pages.plan(all.back());
      }
      const auto number = static_cast<std::size_t>(made.below(static_cast<int>(all.size())));
      Tracked& one = all[number];
      const int kind = made.below(10);
      if (kind < 3) {
        if (one.length() < 900) pages.append(one, made.below(3) == 0 ? 1 + made.below(90) : 1);
      } else if (kind == 3 && all.size() < 6) {
        Tracked fork = pages.fork(one, made.below(2) == 0);
        all.push_back(std::move(fork));
        continue;
      } else if (kind == 4 && one.length() > 1) {
        const auto gone = 1 + made.below(static_cast<int>(std::min<std::int64_t>(one.length() - 1, 70)));
        if (made.below(2) == 0) {  // tokens that no index took in
          const Mark mark = pages.cache().mark(one.id);
          Tracked longer = pages.fork(one, true);
          pages.cache().extend(one.id, gone);
          pages.cache().restore(mark);
          pages.cache().destroy(longer.id);
        } else {
          pages.cache().truncate(one.id, gone);
          for (auto& keys : one.keys) keys.resize(keys.size() - static_cast<std::size_t>(gone));
          pages.plan(one);
        }
      } else if (kind == 5) {
        pages.correct(one, 1 + made.below(static_cast<int>(std::min<std::int64_t>(one.length(), 60))));
      } else if (kind == 6) {
        pages.cache().put_away(one.id, made.below(2) == 0);
        pages.expect_right(one);
        pages.cache().bring_back(one.id);
      } else if (kind == 7 && one.length() >= 64) {
        const std::vector<HeadPage> some = {{0, 0, 1}, {0, 1, 3}};
        pages.cache().recall_all(one.id);
        pages.cache().spill(one.id, some);
        pages.expect_right(one);
        if (made.below(2) == 0) {
          pages.cache().recall(one.id, some);  // and its copies stay
        } else {
          pages.cache().recall_all(one.id);
        }
      } else if (kind == 8 && made.below(4) == 0) {
        pages.cache().destroy(one.id);
        all.erase(all.begin() + static_cast<std::ptrdiff_t>(number));
        continue;
      }
      if (made.below(2) == 0) pages.grow(one);
      for (Tracked& each : all) pages.expect_right(each);
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (const Tracked& one : all) pages.cache().destroy(one.id);
    EXPECT_EQ(pages.cache().usage().pages_free, pages.cache().usage().pages_total);
  }
}

TEST(PageDigests, OfForksMayBeMadeAtOnce) {
  Pages pages(6);
  Tracked source = pages.open(300);
  pages.append(source, 100);  // pages that have none yet
  Tracked same = pages.fork(source, true), other = pages.fork(source, false);
  pages.grow(source);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::thread> threads;
    std::latch all_there(3);
    for (Tracked* one : {&source, &same, &other}) {
      threads.emplace_back([&pages, &all_there, one] {
        all_there.arrive_and_wait();
        const std::vector<plan::Selector> selectors = all_selectors();
        IndexScratch scratch;
        std::vector<std::int32_t> set;
        const std::vector<float> query(kDim, 1);
        for (int head = 0; head < kHeads; ++head) {
          const kernels::HeadView view = pages.cache().view(one->id, 0, head);
          const KeySource keys{&view, pages.cache().shape().format, {}, one->prompt, pages.cache().digests()};
          for (const auto& index : one->indices[static_cast<std::size_t>(head)]) {
            index->extend(keys, one->length());
            index->search({query.data(), 1, 1, one->length(), 128}, scratch, set);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (Tracked* one : {&source, &same, &other}) pages.expect_right(*one);
    for (Tracked* one : {&source, &same, &other}) pages.append(*one, 7);
  }
}

}  // namespace
}  // namespace glimpse::kv::testing
