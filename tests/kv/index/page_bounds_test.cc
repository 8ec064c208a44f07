#include "glimpse/kv/index/page_bounds.h"

#include "glimpse/kv/index/landmarks.h"
#include "support.h"

namespace glimpse::kv::testing {
namespace {

struct Case {
  KvType type = KvType::bf16;
  plan::Digest digest = plan::Digest::min_max;
  int block = 16;
  plan::GroupPooling group = plan::GroupPooling::max_score;
};

/// A page's score by the formulas of Quest, ArkVale and methods.md section 8, from the keys as stored.
double page_score(Keys& keys, const Case& c, std::int64_t first, const float* q) {
  const auto dim = static_cast<std::size_t>(keys.dim());
  Row low(dim, 1e30), high(dim, -1e30), mean(dim, 0), variance(dim, 0);
  std::vector<Row> rows;
  for (std::int64_t t = first; t < first + c.block; ++t) rows.push_back(keys.key(t));
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < dim; ++i) {
      low[i] = std::min(low[i], row[i]);
      high[i] = std::max(high[i], row[i]);
      mean[i] += row[i] / c.block;
    }
  }
  double score = 0;
  if (c.digest == plan::Digest::min_max) {
    for (std::size_t i = 0; i < dim; ++i) score += std::max(q[i] * low[i], q[i] * high[i]);
    return score;
  }
  if (c.digest == plan::Digest::mean_deviation) {
    double spread = 0;
    for (const Row& row : rows) {
      for (std::size_t i = 0; i < dim; ++i) variance[i] += (row[i] - mean[i]) * (row[i] - mean[i]) / c.block;
    }
    for (std::size_t i = 0; i < dim; ++i) spread += static_cast<double>(q[i]) * q[i] * variance[i];
    return dot(q, mean) + 1.5 * std::sqrt(spread);
  }
  Row centre(dim);
  for (std::size_t i = 0; i < dim; ++i) centre[i] = (low[i] + high[i]) / 2;
  double radius = 0;
  for (const Row& row : rows) {
    Row off(dim);
    for (std::size_t i = 0; i < dim; ++i) off[i] = row[i] - centre[i];
    radius = std::max(radius, norm(off));
  }
  return dot(q, centre) + norm(Row(q, q + dim)) * radius;
}

TEST(PageBounds, SetsAreThoseOfTheFormulas) {
  Made made(1);
  std::vector<Case> cases;
  for (const KvType type : {KvType::bf16, KvType::f16, KvType::f32}) cases.push_back({.type = type});
  for (const plan::Digest digest : {plan::Digest::sphere, plan::Digest::mean_deviation}) {
    cases.push_back({.digest = digest});
    cases.push_back({.type = KvType::q8_0, .digest = digest, .block = 32});
  }
  for (const int block : {32, 64}) cases.push_back({.block = block});
  for (const auto group : {plan::GroupPooling::mean_score, plan::GroupPooling::mean_query})
    cases.push_back({.group = group});
  for (const Case& c : cases) {
    const bool clustered = made.below(2) == 0;
    Keys keys({c.type, 64}, 900);
    plan::Selector selector = selector_of(plan::Source::page_bounds, 8 * c.block, c.block);
    selector.sink = 5;
    selector.local = c.block + 3;
    selector.terms[0].group = c.group;
    selector.terms[0].index.digest = c.digest;
    selector.terms[0].index.deviation_weight = 1.5;
    const auto index = make_index(selector, 64);
    IndexScratch scratch;
    std::vector<std::int32_t> set;
    for (std::int64_t tokens = 1; tokens <= 900; ++tokens) {
      keys.append(made.key(64, clustered));
      index->extend(keys.source(100), tokens);
      if (tokens % 97 != 0 && tokens % (13 * 16) != 0 && tokens != 1) continue;
      const std::vector<float> q = made.queries(3, 64);
      const IndexQuery query{q.data(), 3, 0.125F, tokens, 8 * c.block};
      index->search(query, scratch, set);
      expect_set(set, tokens);
      const std::int64_t blocks = (tokens + c.block - 1) / c.block;
      const std::int64_t window = std::max<std::int64_t>(0, tokens - selector.local) / c.block;
      const std::int64_t tail = std::max<std::int64_t>(1, window);
      std::vector<double> scores;
      std::vector<bool> chosen;
      for (std::int64_t b = 0; b < blocks; ++b) {
        for (std::int64_t t = b * c.block; t < std::min(tokens, (b + 1) * c.block); ++t) {
          ASSERT_EQ(contains(set, t), contains(set, b * c.block)) << "blocks are whole";
        }
        if (b == 0 || b >= tail) {
          EXPECT_TRUE(contains(set, b * c.block));
          continue;
        }
        chosen.push_back(contains(set, b * c.block));
        scores.push_back(0.125 * pooled(c.group, query, 64,
                                        [&](const float* one) { return page_score(keys, c, b * c.block, one); }));
      }
      const std::int64_t room = 8 - 1 - (blocks - tail);
      expect_best(scores, chosen, static_cast<std::size_t>(std::max<std::int64_t>(0, room)));
    }
  }
}

TEST(PageBounds, BoundsCoverEveryKeyAndStayAfterRefresh) {
  Made made(2);
  for (const KvType type : {KvType::bf16, KvType::f16, KvType::f32, KvType::q8_0}) {
    for (const plan::Digest digest : {plan::Digest::min_max, plan::Digest::sphere}) {
      Keys keys({type, 24}, 320);
      plan::Selector selector = selector_of(plan::Source::page_bounds, 64, 16);
      selector.terms[0].index.digest = digest;
      PageBounds index(selector, 24);
      for (int t = 0; t < 320; ++t) keys.append(made.key(24, t % 2 == 0));
      index.extend(keys.source(0), 320);
      EXPECT_EQ(index.covered(), 320);
      for (int round = 0; round < 2; ++round) {
        for (int trial = 0; trial < 500; ++trial) {
          const std::vector<float> q = made.row(24);
          const auto page = made.below(20);
          const std::vector<float> row = index.digests().row(page);
          double bound = 0;
          for (std::size_t i = 0; i < 24; ++i) {
            bound += digest == plan::Digest::sphere
                         ? static_cast<double>(q[i]) * row[i]
                         : std::max(static_cast<double>(q[i]) * row[i], static_cast<double>(q[i]) * row[24 + i]);
          }
          if (digest == plan::Digest::sphere) bound += norm(Row(q.begin(), q.end())) * index.digests().radius(page);
          for (int t = page * 16; t < page * 16 + 16; ++t) ASSERT_LE(dot(q.data(), keys.key(t)), bound + 1e-12);
        }
        for (int t = 150; t < 163; ++t) keys.put(t, made.key(24, false));
        index.refresh(keys.source(0), 150, 163);
      }
    }
  }
}

TEST(PageBounds, WhatIsNotCoveredIsRead) {
  Made made(3);
  Keys keys({KvType::bf16, 16}, 200);
  for (int t = 0; t < 200; ++t) keys.append(made.key(16, false));
  plan::Selector selector = selector_of(plan::Source::page_bounds, 96, 16);
  const auto index = make_index(selector, 16);
  index->extend(keys.source(0), 150);  // nine blocks
  const std::vector<float> q = made.queries(1, 16);
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  const IndexQuery query{q.data(), 1, 1, 200, 96};
  EXPECT_GT(index->search(query, scratch, set), 0U);
  for (int t = 144; t < 200; ++t) EXPECT_TRUE(contains(set, t));
  EXPECT_EQ(set.size(), 96U - 8);  // six blocks, the last of 8 tokens: four in the tail, two chosen

  selector.counts_local = false;
  const auto beside = make_index(selector, 16);
  beside->extend(keys.source(0), 150);
  beside->search(query, scratch, set);
  EXPECT_EQ(set.size(), 96U + 56);
}

TEST(PageBounds, ClonesAreApartAndCallsDoNotMatter) {
  Made made(4);
  Keys keys({KvType::bf16, 16}, 400);
  for (int t = 0; t < 400; ++t) keys.append(made.key(16, true));
  const auto once = make_index(selector_of(plan::Source::page_bounds, 64, 16), 16);
  const auto steps = once->clone();
  once->extend(keys.source(300), 400);
  EXPECT_EQ(steps->covered(), 0);
  for (int t = 1; t <= 400; ++t) steps->extend(keys.source(300), t);
  const std::vector<float> q = made.queries(2, 16);
  IndexScratch scratch;
  std::vector<std::int32_t> a, b;
  once->search({q.data(), 2, 1, 400, 64}, scratch, a);
  const std::vector<float> before = scratch.queries;
  steps->search({q.data(), 2, 1, 400, 64}, scratch, b);
  EXPECT_EQ(a, b);
  EXPECT_EQ(once->bytes(), 32U * 2 * 16 * 2);  // 25 pages, in tiles of 32
}

TEST(Landmarks, MeansOfPromptChunksChooseAndOutliersComeFirst) {
  Made made(5);
  for (const int outliers : {0, 5}) {
    Keys keys({KvType::bf16, 64}, 500);
    plan::Selector selector = selector_of(plan::Source::landmarks, 160, 8);
    selector.local = 32;
    selector.counts_local = false;
    selector.terms[0].index.outlier_chunks = outliers;
    Landmarks index(selector, 64);
    const int prompt = 405;  // 50 chunks and a rest
    for (int t = 0; t < 430; ++t) {
      keys.append(made.key(64, true));
      index.extend(keys.source(prompt), t + 1);
      EXPECT_EQ(index.covered(), t + 1 < prompt ? 0 : 400);
    }
    // ShadowKV: the chunks of the least cosine between a key and the landmark.
    std::vector<std::pair<double, int>> cosines;
    std::vector<Row> means;
    for (int chunk = 0; chunk < 50; ++chunk) {
      Row mean(64, 0);
      for (int t = 0; t < 8; ++t) {
        const Row key = keys.key(chunk * 8 + t);
        for (std::size_t i = 0; i < 64; ++i) mean[i] += key[i] / 8;
      }
      double least = 1;
      for (int t = 0; t < 8; ++t) {
        const Row key = keys.key(chunk * 8 + t);
        double product = 0;
        for (std::size_t i = 0; i < 64; ++i) product += key[i] * mean[i];
        least = std::min(least, product / (norm(key) * norm(mean)));
      }
      cosines.emplace_back(least, chunk);
      means.push_back(mean);
    }
    std::sort(cosines.begin(), cosines.end());
    std::vector<bool> outlier(50, false);
    for (int i = 0; i < outliers; ++i)
      outlier[static_cast<std::size_t>(cosines[static_cast<std::size_t>(i)].second)] = true;
    ASSERT_EQ(index.outliers().size(), static_cast<std::size_t>(outliers));

    IndexScratch scratch;
    std::vector<std::int32_t> set;
    for (int trial = 0; trial < 50; ++trial) {
      const std::vector<float> q = made.queries(3, 64);
      const IndexQuery query{q.data(), 3, 0.125F, 430, 160};
      index.search(query, scratch, set);
      expect_set(set, 430);
      // The window of 32 begins within chunk 49: that, the rest and the outliers are beside the budget of 20 chunks.
      for (int t = 392; t < 430; ++t) EXPECT_TRUE(contains(set, t));
      std::vector<double> scores;
      std::vector<bool> chosen;
      for (int chunk = 0; chunk < 49; ++chunk) {
        if (outlier[static_cast<std::size_t>(chunk)]) {
          EXPECT_TRUE(contains(set, chunk * 8));
          continue;
        }
        chosen.push_back(contains(set, chunk * 8));
        scores.push_back(pooled(plan::GroupPooling::max_score, query, 64,
                                [&](const float* one) { return dot(one, means[static_cast<std::size_t>(chunk)]); }));
      }
      expect_best(scores, chosen, 20U);
    }
  }
}

// Against doubles: each query's softmax over what may be chosen, the maximum over the group.
TEST(Landmarks, ProbabilitiesOverWhatMayBeChosenChoose) {
  Made made(8);
  Keys keys({KvType::bf16, 32}, 200);
  for (int t = 0; t < 200; ++t) keys.append(made.key(32, true));
  plan::Selector selector = selector_of(plan::Source::landmarks, 40, 8);
  selector.counts_local = false;
  selector.terms[0].group = plan::GroupPooling::max_probability;
  selector.terms[0].index.outlier_chunks = 6;
  Landmarks index(selector, 32);
  index.extend(keys.source(192), 200);
  std::vector<Row> means(24, Row(32, 0));
  for (std::size_t token = 0; token < 192; ++token) {
    const Row key = keys.key(static_cast<int>(token));
    for (std::size_t i = 0; i < 32; ++i) means[token / 8][i] += key[i] / 8;
  }
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  int differ = 0;
  for (int trial = 0; trial < 50; ++trial) {
    const std::vector<float> q = made.queries(3, 32);
    index.search({q.data(), 3, 1, 200, 40}, scratch, set);
    std::vector<double> best(24, -1e300), products(24, -1e300);
    for (std::size_t j = 0; j < 3; ++j) {
      std::vector<double> row(24);
      double sum = 0;
      for (int c = 0; c < 24; ++c) {
        const auto at = static_cast<std::size_t>(c);
        row[at] = dot(q.data() + j * 32, means[at]);
        products[at] = std::max(products[at], row[at]);
        const bool outlier =
            std::count(index.outliers().begin(), index.outliers().end(), static_cast<std::int32_t>(c)) > 0;
        if (!outlier) sum += std::exp(row[at] - 100);
      }
      for (std::size_t c = 0; c < 24; ++c) best[c] = std::max(best[c], row[c] - 100 - std::log(sum));
    }
    std::vector<double> scores, raw;
    std::vector<bool> chosen;
    for (int chunk = 0; chunk < 24; ++chunk) {
      const auto at = static_cast<std::size_t>(chunk);
      if (std::count(index.outliers().begin(), index.outliers().end(), static_cast<std::int32_t>(chunk)) > 0) {
        EXPECT_TRUE(contains(set, chunk * 8));
        continue;
      }
      chosen.push_back(contains(set, chunk * 8));
      scores.push_back(best[at]);
      raw.push_back(products[at]);
    }
    expect_best(scores, chosen, 5U);
    std::vector<double> order = raw;
    std::sort(order.begin(), order.end(), std::greater<>());
    const double cut = order[4];
    for (std::size_t i = 0; i < raw.size(); ++i) differ += (raw[i] >= cut) != chosen[i];
  }
  EXPECT_GT(differ, 0) << "products alone would choose the same";
}

TEST(Landmarks, OutliersNeverBreakTheBudget) {
  Made made(6);
  Keys keys({KvType::bf16, 16}, 300);
  for (int t = 0; t < 300; ++t) keys.append(made.key(16, true));
  plan::Selector selector = selector_of(plan::Source::landmarks, 64, 8);
  selector.terms[0].index.outlier_chunks = 30;
  const auto index = make_index(selector, 16);
  index->extend(keys.source(296), 300);
  const std::vector<float> q = made.queries(1, 16);
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  index->search({q.data(), 1, 1, 300, 64}, scratch, set);
  EXPECT_EQ(set.size(), 7U * 8 + 4);
}

}  // namespace
}  // namespace glimpse::kv::testing
