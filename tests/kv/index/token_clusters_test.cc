#include "glimpse/kv/index/token_clusters.h"

#include <set>

#include "glimpse/kv/index/k_means.h"
#include "support.h"
#include "tests/reference/methods.h"

namespace glimpse::kv::testing {
namespace {

plan::Selector cluster_selector(std::int64_t budget, bool counts_local) {
  plan::Selector selector = selector_of(plan::Source::token_clusters, budget);
  selector.sink = 16;
  selector.local = 1;
  selector.counts_local = counts_local;
  return selector;
}

Row mean_key(Keys& keys, std::span<const std::int32_t> tokens) {
  Row mean(static_cast<std::size_t>(keys.dim()), 0);
  for (const std::int32_t token : tokens) {
    const Row key = keys.key(token);
    for (std::size_t i = 0; i < key.size(); ++i) mean[i] += key[i] / static_cast<double>(tokens.size());
  }
  return mean;
}

/// Clusters hold each token once, their means are those of their keys.
void expect_clusters(const TokenClusters& index, Keys& keys, std::int64_t sink) {
  std::vector<int> seen(static_cast<std::size_t>(index.covered()), 0);
  for (std::int32_t c = 0; c < index.clusters(); ++c) {
    const auto tokens = index.tokens_of(c);
    ASSERT_FALSE(tokens.empty());
    EXPECT_TRUE(std::is_sorted(tokens.begin(), tokens.end()));
    for (const std::int32_t token : tokens) ++seen[static_cast<std::size_t>(token)];
    const Row mean = mean_key(keys, tokens);
    for (std::size_t i = 0; i < mean.size(); ++i) EXPECT_NEAR(index.mean_of(c)[i], mean[i], 1e-5);
  }
  for (std::int64_t t = 0; t < index.covered(); ++t) EXPECT_EQ(seen[static_cast<std::size_t>(t)], t < sink ? 0 : 1);
}

/// What a device finds, taken in, are the clusters that extend() makes; later ones join them.
TEST(TokenClusters, AdoptedOnesAreThoseThatAreMade) {
  constexpr int kDim = 32;
  Made made(37);
  Keys keys({KvType::bf16, kDim}, 2000);
  for (int t = 0; t < 2000; ++t) keys.append(made.key(kDim, true));
  TokenClusters index(cluster_selector(256, false), kDim), adopted(cluster_selector(256, false), kDim);
  index.extend(keys.source(1210), 1210);
  EXPECT_EQ(adopted.cut(1210, 1209).last, 0) << "they wait for the whole prompt";
  const TokenClusters::Cut cut = adopted.cut(1210, 1300);
  EXPECT_EQ(cut.first, 16);
  EXPECT_EQ(cut.last, 1210);
  EXPECT_EQ(cut.wanted, 15);
  std::vector<float> rows;
  for (std::int64_t t = cut.first; t < cut.last; ++t) {
    for (const double x : keys.key(t)) rows.push_back(static_cast<float>(x));
  }
  const auto count = static_cast<std::int32_t>(cut.last - cut.first);
  const std::vector<std::int32_t> sampled = sampled_rows(count, cut.wanted);
  EXPECT_EQ(std::set<std::int32_t>(sampled.begin(), sampled.end()).size(), sampled.size());
  const Clusters found = spherical_k_means({rows.data(), count, kDim, cut.wanted, Seeding::sampled_plus_plus});
  std::vector<float> means;
  for (std::int32_t c = 0; c < found.count; ++c) {
    std::vector<std::int32_t> tokens;
    for (std::int32_t r = 0; r < count; ++r) {
      if (found.nearest[static_cast<std::size_t>(r)] == c) tokens.push_back(16 + r);
    }
    for (const double x : mean_key(keys, tokens)) means.push_back(static_cast<float>(x));
  }
  adopted.adopt(cut, found.nearest, found.count, means);
  EXPECT_EQ(adopted.cut(1210, 1300).last, 0) << "they are there";
  for (const std::int64_t now : {1210, 2000}) {
    index.extend(keys.source(1210), now);
    adopted.extend(keys.source(1210), now);
    ASSERT_EQ(adopted.clusters(), index.clusters());
    EXPECT_EQ(adopted.covered(), index.covered());
    for (std::int32_t c = 0; c < index.clusters(); ++c) {
      EXPECT_TRUE(std::ranges::equal(adopted.tokens_of(c), index.tokens_of(c)));
    }
    expect_clusters(adopted, keys, 16);
  }
}

TEST(TokenClusters, AreMadeOfThePromptAndOfThreeHundredTwentyNewTokens) {
  Made made(31);
  Keys keys({KvType::bf16, 32}, 2000);
  TokenClusters index(cluster_selector(256, false), 32);
  for (int t = 1; t <= 2000; ++t) {
    keys.append(made.key(32, true));
    index.extend(keys.source(1210), t);
    const std::int64_t expected = t < 1210 ? 0 : 1210 + std::max(0, t - 1 - 1210) / 320 * 320;
    ASSERT_EQ(index.covered(), expected) << t;
    if (t == 1210) {
      EXPECT_LE(index.clusters(), 15);
    }
  }
  EXPECT_LE(index.clusters(), 15 + 2 * 4);
  expect_clusters(index, keys, 16);
  // In each generation of clusters a key is nearest, by cosine, to its own mean.
  int astray = 0;
  for (std::int32_t c = 0; c < index.clusters(); ++c) {
    for (const std::int32_t token : index.tokens_of(c)) {
      const Row key = keys.key(token);
      const auto generation = [](std::int32_t t) { return t < 1210 ? 0 : 1 + (t - 1210) / 320; };
      const auto cosine = [&](std::int32_t cluster) {
        const Row mean(index.mean_of(cluster).begin(), index.mean_of(cluster).end());
        double product = 0;
        for (std::size_t i = 0; i < mean.size(); ++i) product += mean[i] * key[i];
        return product / norm(mean);
      };
      for (std::int32_t other = 0; other < index.clusters(); ++other) {
        const bool same = generation(index.tokens_of(other)[0]) == generation(token);
        if (same && cosine(other) > cosine(c) + 1e-4) ++astray;
      }
    }
  }
  EXPECT_LE(astray, 2000 / 20) << "ten rounds may leave a few keys short of their last place";
  for (int t = 1300; t < 1400; ++t) keys.put(t, made.key(32, false));
  index.refresh(keys.source(1210), 1300, 1400);
  expect_clusters(index, keys, 16);
}

// Directions of very different numbers of keys, as of a text's few themes and many details: k-means++ finds the small
// ones, rows at random do not.
TEST(TokenClusters, StartByKMeansPlusPlus) {
  constexpr int kDim = 32, kTokens = 4016, kDetails = 40;
  Made made(33);
  std::vector<Row> topics;
  for (int t = 0; t < 2 + kDetails; ++t) {
    const auto topic = made.row(kDim);
    topics.emplace_back(topic.begin(), topic.end());
  }
  Keys keys({KvType::f32, kDim}, kTokens);
  methods::Rows rows;
  for (int t = 0; t < kTokens; ++t) {
    const int topic = t % 20 == 0 ? 2 + t / 20 % kDetails : t % 2;
    std::vector<float> key;
    for (const double x : topics[static_cast<std::size_t>(topic)]) {
      key.push_back(static_cast<float>(x + 0.05 * made.normal()));
    }
    keys.append(key);
    if (t >= 16) rows.push_back(keys.key(t));
  }
  TokenClusters index(cluster_selector(256, false), kDim);
  index.extend(keys.source(kTokens), kTokens);
  methods::Set members(rows.size());
  for (std::int32_t c = 0; c < index.clusters(); ++c) {
    for (const std::int32_t token : index.tokens_of(c)) members[static_cast<std::size_t>(token - 16)] = c;
  }
  double expected = 0;
  for (std::uint32_t seed = 1; seed <= 3; ++seed) {
    expected += methods::cluster_cohesion(rows, methods::spherical_clusters(rows, kTokens / 80, seed)) / 3;
  }
  EXPECT_GT(methods::cluster_cohesion(rows, members), 1 - 4 * (1 - expected)) << expected;
}

TEST(TokenClusters, SearchIsTheRule) {
  Made made(32);
  for (const bool counts_local : {false, true}) {
    Keys keys({KvType::f16, 32}, 1700);
    const plan::Selector selector = cluster_selector(300, counts_local);
    TokenClusters index(selector, 32);
    for (int t = 0; t < 1700; ++t) keys.append(made.key(32, true));
    const int tokens = 1600;
    index.extend(keys.source(1500), tokens);
    IndexScratch scratch;
    std::vector<std::int32_t> set;
    int compared = 0;
    for (int trial = 0; trial < 60; ++trial) {
      const std::vector<float> q = made.queries(3, 32);
      const IndexQuery query{q.data(), 3, 0.2F, tokens, 300};
      index.search(query, scratch, set);
      expect_set(set, tokens);
      std::vector<std::pair<double, std::int32_t>> order;
      for (std::int32_t c = 0; c < index.clusters(); ++c) {
        const Row mean = mean_key(keys, index.tokens_of(c));
        order.emplace_back(
            -pooled(plan::GroupPooling::max_score, query, 32, [&](const float* one) { return dot(one, mean); }), c);
      }
      std::sort(order.begin(), order.end());
      bool unclear = false;
      for (std::size_t i = 1; i < order.size(); ++i) unclear = unclear || order[i].first - order[i - 1].first < 1e-4;
      if (unclear) continue;
      ++compared;
      std::set<std::int32_t> expected;
      for (int t = 0; t < 16; ++t) expected.insert(t);
      std::size_t left = 300 - 16 - (counts_local ? 100 : 0);
      for (const auto& [score, c] : order) {
        for (const std::int32_t token : index.tokens_of(c)) {
          if (left == 0) break;
          expected.insert(token);
          --left;
        }
      }
      for (int t = 1500; t < tokens; ++t) expected.insert(t);
      EXPECT_EQ(set, std::vector<std::int32_t>(expected.begin(), expected.end()));
    }
    EXPECT_GT(compared, 20);
  }
}

TEST(TokenClusters, CallsDoNotMatterAndShortPromptsAreRead) {
  Made made(33);
  Keys keys({KvType::bf16, 32}, 1100);
  for (int t = 0; t < 1100; ++t) keys.append(made.key(32, true));
  const auto once = make_index(cluster_selector(128, false), 32);
  const auto steps = once->clone();
  once->extend(keys.source(9), 1100);
  for (int t = 1; t <= 1100; ++t) steps->extend(keys.source(9), t);
  EXPECT_EQ(once->covered(), 9 + 3 * 320);
  EXPECT_EQ(once->bytes(), steps->bytes());
  IndexScratch scratch;
  std::vector<std::int32_t> a, b;
  const std::vector<float> q = made.queries(1, 32);
  once->search({q.data(), 1, 1, 1100, 128}, scratch, a);
  steps->search({q.data(), 1, 1, 1100, 128}, scratch, b);
  EXPECT_EQ(a, b);
  for (int t = 0; t < 16; ++t) EXPECT_TRUE(contains(a, t));
  EXPECT_EQ(a.size(), 128U + 1100 - 969);
}

}  // namespace
}  // namespace glimpse::kv::testing
