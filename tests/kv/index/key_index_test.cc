// What all indices share: sets within the budget, no allocation in a warm search, options that are refused.
#include "glimpse/kv/index/key_index.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "allocations.h"
#include "glimpse/base/error.h"
#include "glimpse/kv/index/chunk_bounds.h"
#include "glimpse/kv/index/chunk_tree.h"
#include "glimpse/kv/index/landmarks.h"
#include "glimpse/kv/index/token_clusters.h"
#include "support.h"

namespace glimpse::kv::testing {
namespace {

std::vector<plan::Selector> every_selector() {
  std::vector<plan::Selector> all;
  for (const plan::Digest digest : {plan::Digest::min_max, plan::Digest::sphere, plan::Digest::mean_deviation}) {
    all.push_back(selector_of(plan::Source::page_bounds, 256, 16));
    all.back().terms[0].index.digest = digest;
    all.push_back(selector_of(plan::Source::chunk_tree, 256));
    all.back().terms[0].index.digest = digest;
    all.back().terms[0].index.chunk_bounds = true;
    all.back().local = 128;
  }
  all.push_back(selector_of(plan::Source::chunk_tree, 256));
  all.back().local = 128;
  all.push_back(selector_of(plan::Source::token_clusters, 256));
  all.push_back(selector_of(plan::Source::landmarks, 256, 8));
  all.back().terms[0].index.outlier_chunks = 6;
  for (plan::Selector& selector : all) selector.sink = 16;
  return all;
}

TEST(KeyIndex, KeepsTheBudgetAndAllocatesNothingWhenWarm) {
  Stream stream(41, 64, 2100);
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  for (const auto pooling :
       {plan::GroupPooling::max_score, plan::GroupPooling::mean_score, plan::GroupPooling::mean_query}) {
    for (plan::Selector selector : every_selector()) {
      selector.terms[0].group = pooling;
      const auto index = make_index(selector, 64);
      index->extend(stream.source(2000), 2050);
      const std::vector<float> q = stream.made.queries(3, 64);
      const IndexQuery query{q.data(), 3, 0.125F, 2050, 256};
      index->search(query, scratch, set);
      const std::vector<std::int32_t> cold = set;
      const long before = allocations();
      const std::size_t read = index->search(query, scratch, set);
      EXPECT_EQ(allocations(), before);
      EXPECT_EQ(set, cold);
      expect_set(set, 2050);
      EXPECT_LE(set.size(), 256U);
      EXPECT_GE(set.size(), 256U - 32);
      for (int t = 0; t < 16; ++t) EXPECT_TRUE(contains(set, t));
      EXPECT_GT(read, 0U);
      EXPECT_LE(read, index->bytes() + 4 * 2050);
      // A budget that covers everything, and one that what is always in fills.
      index->search({q.data(), 3, 0.125F, 2050, 2064}, scratch, set);
      EXPECT_EQ(set.size(), 2050U);
      index->search({q.data(), 3, 0.125F, 2050, 17}, scratch, set);
      expect_set(set, 2050);
    }
  }
}

/// The unit of every token, from the lists that the index shows; -1: of none.
std::vector<std::int32_t> unit_of_tokens(const KeyIndex& index, const plan::Selector& selector, std::int32_t tokens) {
  std::vector<std::int32_t> units(static_cast<std::size_t>(tokens), -1);
  const auto give = [&](std::int64_t token, std::int32_t unit) { units[static_cast<std::size_t>(token)] = unit; };
  const auto give_chunk = [&](const ChunkList& chunks, std::int32_t chunk, std::int32_t unit) {
    for (std::int64_t t = chunks.begin(chunk); t < chunks.end(chunk); ++t) give(t, unit);
  };
  if (const auto* tree = dynamic_cast<const ChunkTree*>(&index)) {
    for (std::int32_t cluster = 0; cluster < tree->fine().count(); ++cluster) {
      for (const std::int32_t chunk : tree->chunks_of(cluster)) give_chunk(tree->chunks(), chunk, cluster);
    }
  } else if (const auto* bounds = dynamic_cast<const ChunkBounds*>(&index)) {
    for (std::int32_t chunk = 0; chunk < bounds->chunks().count(); ++chunk) give_chunk(bounds->chunks(), chunk, chunk);
  } else if (const auto* clusters = dynamic_cast<const TokenClusters*>(&index)) {
    for (std::int32_t cluster = 0; cluster < clusters->clusters(); ++cluster) {
      for (const std::int32_t token : clusters->tokens_of(cluster)) give(token, cluster);
    }
  } else {
    for (std::int64_t t = 0; t < index.covered(); ++t) give(t, static_cast<std::int32_t>(t / selector.block));
    if (const auto* marks = dynamic_cast<const Landmarks*>(&index)) {
      for (const std::int32_t chunk : marks->outliers()) {
        for (int i = 0; i < selector.block; ++i) give(std::int64_t{chunk} * selector.block + i, -1);
      }
    }
  }
  for (std::int64_t t = 0; t < selector.sink; ++t) give(t, -1);
  return units;
}

TEST(KeyIndex, TheUnitsOfASetAreThoseOfItsTokens) {
  Stream stream(43, 64, 2100);
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  for (const plan::Selector& selector : every_selector()) {
    const auto index = make_index(selector, 64);
    index->extend(stream.source(2000), 2055);
    const std::vector<std::int32_t> unit_of = unit_of_tokens(*index, selector, 2055);
    for (const std::int64_t budget : {200, 256, 17}) {
      const std::vector<float> q = stream.made.queries(3, 64);
      index->search({q.data(), 3, 0.125F, 2055, budget}, scratch, set);
      std::vector<std::int32_t> expected;
      for (const std::int32_t token : set) {
        if (unit_of[static_cast<std::size_t>(token)] >= 0) expected.push_back(unit_of[static_cast<std::size_t>(token)]);
      }
      std::sort(expected.begin(), expected.end());
      expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
      const std::vector<std::int32_t> units = index->units_of(set, 2055);
      EXPECT_EQ(units, expected) << static_cast<int>(selector.terms[0].source) << ", budget " << budget;
      EXPECT_EQ(units.empty(), budget == 17);
    }
  }
}

TEST(KeyIndex, AFullBlockOfTheLocalWindowIsNoUnit) {
  Made made(44);
  Keys keys({KvType::bf16, 64}, 128);
  for (int t = 0; t < 128; ++t) keys.append(made.key(64, true));
  plan::Selector selector = selector_of(plan::Source::page_bounds, 64, 16);
  selector.local = 20;
  const auto index = make_index(selector, 64);
  index->extend(keys.source(100), 128);
  // The last of 128 tokens ends block 7; the last 20 begin in block 6.
  EXPECT_THAT(index->units_of(std::vector<std::int32_t>{3, 47, 48, 96, 112, 127}, 128),
              ::testing::ElementsAre(0, 2, 3));
}

TEST(KeyIndex, KeysThatAreNoNumbersLeaveASetOfTheBudget) {
  Made made(42);
  Keys keys({KvType::bf16, 64}, 900);
  for (int t = 0; t < 900; ++t) keys.append(made.key(64, true));
  keys.put(333, std::vector<float>(64, std::numeric_limits<float>::quiet_NaN()));
  for (const plan::Selector& selector : every_selector()) {
    const auto index = make_index(selector, 64);
    index->extend(keys.source(880), 900);
    IndexScratch scratch;
    std::vector<std::int32_t> set;
    const std::vector<float> q = made.queries(2, 64);
    index->search({q.data(), 2, 1, 900, 256}, scratch, set);
    expect_set(set, 900);
    EXPECT_LE(set.size(), 256U);
  }
}

TEST(ChunkBounds, ChunksComeInTheOrderOfTheirScores) {
  Stream stream(43, 32, 1000);
  plan::Selector selector = selector_of(plan::Source::chunk_tree, 200);
  selector.sink = 16;
  selector.local = 128;
  selector.terms[0].index.chunk_bounds = true;
  ChunkBounds index(selector, 32);
  index.extend(stream.source(960), 1000);
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  for (int trial = 0; trial < 40; ++trial) {
    const std::vector<float> q = stream.made.queries(2, 32);
    const IndexQuery query{q.data(), 2, 1, 1000, 200};
    index.search(query, scratch, set);
    std::vector<std::pair<double, std::int32_t>> order;
    for (std::int32_t chunk = 0; chunk < index.chunks().count(); ++chunk) {
      Row low(32, 1e30), high(32, -1e30);
      for (std::int64_t t = index.chunks().begin(chunk); t < index.chunks().end(chunk); ++t) {
        const Row key = stream.keys.key(t);
        for (std::size_t i = 0; i < 32; ++i) {
          low[i] = std::min(low[i], key[i]);
          high[i] = std::max(high[i], key[i]);
        }
      }
      order.emplace_back(-pooled(plan::GroupPooling::max_score, query, 32,
                                 [&](const float* one) {
                                   double sum = 0;
                                   for (std::size_t i = 0; i < 32; ++i)
                                     sum += std::max(one[i] * low[i], one[i] * high[i]);
                                   return sum;
                                 }),
                         chunk);
    }
    std::sort(order.begin(), order.end());
    std::vector<std::int32_t> expected;
    for (std::int32_t t = 0; t < 1000; ++t) {
      if (t < 16 || t >= index.covered()) expected.push_back(t);
    }
    for (const auto& [score, chunk] : order) {
      std::vector<std::int32_t> more;
      for (std::int64_t t = std::max<std::int64_t>(16, index.chunks().begin(chunk)); t < index.chunks().end(chunk);
           ++t) {
        more.push_back(static_cast<std::int32_t>(t));
      }
      if (expected.size() + more.size() > 200) break;
      expected.insert(expected.end(), more.begin(), more.end());
    }
    std::sort(expected.begin(), expected.end());
    EXPECT_EQ(set, expected);
  }
}

TEST(KeyIndex, RefusesWhatItCannotDo) {
  using ::testing::HasSubstr;
  using ::testing::ThrowsMessage;
  const auto refused = [](plan::Selector selector, const char* words) {
    EXPECT_THAT([&] { make_index(selector, 64); }, ThrowsMessage<UserError>(HasSubstr(words)));
  };
  plan::Selector landmarks = selector_of(plan::Source::landmarks, 256, 8);
  landmarks.terms[0].index.outlier_chunks = -1;
  refused(landmarks, "outlier_chunks = -1");
  plan::Selector tree = selector_of(plan::Source::chunk_tree, 256);
  refused(tree, "local = 0");
  tree.local = 128;
  tree.terms[0].index.chunks_per_cluster = 0;
  refused(tree, "chunks_per_cluster = 0");
  plan::Selector clusters = selector_of(plan::Source::token_clusters, 256);
  clusters.terms[0].index.tokens_per_cluster = 0;
  refused(clusters, "tokens_per_cluster = 0");
  clusters.terms[0].index.tokens_per_cluster = 400;
  refused(clusters, "new_tokens = 320");
  plan::Selector pages = selector_of(plan::Source::page_bounds, 256, 16);
  pages.terms[0].index.deviation_weight = -1;
  refused(pages, "deviation_weight = -1");
  pages.terms.push_back(pages.terms[0]);
  refused(pages, "2 terms");
  refused(selector_of(plan::Source::dot, 256), "0 of them with an index");
}

}  // namespace
}  // namespace glimpse::kv::testing
