// The tree against the rules of methods.md, section 5: its build's invariants, its bounds over random streams, and its
// search transcribed in double from the centroids and radii that it holds.
#include "glimpse/kv/index/chunk_tree.h"

#include <map>
#include <numeric>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/kv/index/k_means.h"
#include "support.h"

namespace glimpse::kv::testing {
namespace {

constexpr int kDim = 32;

plan::Selector tree_selector(std::int64_t budget) {
  plan::Selector selector = selector_of(plan::Source::chunk_tree, budget);
  selector.sink = 16;
  selector.local = 128;
  return selector;
}

Row representative(Keys& keys, std::int64_t begin, std::int64_t end, bool max_pooling) {
  Row pooled = keys.key(begin);
  for (std::int64_t t = begin + 1; t < end; ++t) {
    const Row key = keys.key(t);
    for (std::size_t i = 0; i < key.size(); ++i)
      pooled[i] = max_pooling ? std::max(pooled[i], key[i]) : pooled[i] + key[i];
  }
  const double length = norm(pooled);
  for (double& x : pooled) x /= length;
  return pooled;
}

Row centroid(const NodeLevel& level, std::int32_t node) {
  std::vector<float> row(static_cast<std::size_t>(level.dim()));
  level.read(node, row.data());
  return {row.begin(), row.end()};
}

double distance(const Row& a, const Row& b) {
  Row off(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) off[i] = a[i] - b[i];
  return norm(off);
}

/// Everything that must hold of a tree at any time.
void expect_tree(const ChunkTree& tree, Stream& stream, int queries) {
  const double rounding = 3e-7;  // representatives are floats
  std::vector<int> seen(static_cast<std::size_t>(tree.chunks().count()), 0);
  std::vector<Row> rows;
  for (std::int32_t chunk = 0; chunk < tree.chunks().count(); ++chunk) {
    rows.push_back(representative(stream.keys, tree.chunks().begin(chunk), tree.chunks().end(chunk), false));
  }
  std::int32_t next = 0;
  for (std::int32_t branch = 0; branch < tree.coarse().count(); ++branch) {
    const Row mu_g = centroid(tree.coarse(), branch);
    EXPECT_NEAR(norm(mu_g), 1, 1e-3);
    const auto [first, last] = tree.clusters_of(branch);
    ASSERT_EQ(first, next) << "branches partition the clusters";
    ASSERT_GT(last, first);
    next = last;
    for (std::int32_t c = first; c < last; ++c) {
      const Row mu_c = centroid(tree.fine(), c);
      EXPECT_NEAR(norm(mu_c), 1, 1e-3);
      ASSERT_GE(tree.coarse().radius(branch), distance(mu_c, mu_g) + tree.fine().radius(c) - 1e-9);
      const auto chunks = tree.chunks_of(c);
      ASSERT_FALSE(chunks.empty());
      ASSERT_TRUE(std::is_sorted(chunks.begin(), chunks.end()));
      for (const std::int32_t chunk : chunks) {
        ++seen[static_cast<std::size_t>(chunk)];
        const Row& row = rows[static_cast<std::size_t>(chunk)];
        ASSERT_LE(distance(row, mu_c), tree.fine().radius(c) + rounding);
        ASSERT_LE(distance(row, mu_g), tree.coarse().radius(branch) + rounding);
      }
    }
  }
  EXPECT_EQ(next, tree.fine().count());
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; })) << "clusters partition the chunks";
  // The bound of a node on what lies below it, query by query.
  for (int trial = 0; trial < queries; ++trial) {
    const std::vector<float> q = stream.made.row(kDim);
    const double length = norm(Row(q.begin(), q.end()));
    const auto branch = stream.made.below(tree.coarse().count());
    const auto [first, last] = tree.clusters_of(branch);
    const double bound_g = dot(q.data(), centroid(tree.coarse(), branch)) + length * tree.coarse().radius(branch);
    for (std::int32_t c = first; c < last; ++c) {
      const double bound_c = dot(q.data(), centroid(tree.fine(), c)) + length * tree.fine().radius(c);
      ASSERT_LE(bound_c, bound_g + 1e-9 * length);
      for (const std::int32_t chunk : tree.chunks_of(c)) {
        ASSERT_LE(dot(q.data(), rows[static_cast<std::size_t>(chunk)]), bound_c + rounding * length);
      }
    }
  }
}

TEST(Chunks, EndAtTheBestBoundaryFromEightToSixteen) {
  Made made(11);
  std::vector<Boundary> classes;
  for (int t = 0; t < 5000; ++t) classes.push_back(made.boundary());
  std::int64_t begin = 0;
  while (begin < 5000) {
    const int length = chunk_length(classes, begin, 5000);
    const std::int64_t left = 5000 - begin;
    if (left < 8) {
      EXPECT_EQ(length, left);
      break;
    }
    std::map<Boundary, int> last;  // of each class the last place in reach
    for (int tokens = 8; tokens <= std::min<std::int64_t>(16, left); ++tokens) {
      last[classes[static_cast<std::size_t>(begin + tokens - 1)]] = tokens;
    }
    ASSERT_EQ(length, last.begin()->second);
    begin += length;
  }
  EXPECT_EQ(chunk_length({}, 0, 100), 16) << "without delimiters chunks are fixed";
  EXPECT_EQ(chunk_length(std::vector<Boundary>(100, Boundary::none), 3, 100), 16);
  std::vector<Boundary> early(100, Boundary::none);
  early[6] = Boundary::section;  // too early
  early[9] = Boundary::sentence;
  EXPECT_EQ(chunk_length(early, 0, 100), 10);
}

TEST(Chunks, CoverTheTokensAndKeepABuffer) {
  Stream stream(12, kDim, 1500, false);
  for (const bool fixed : {false, true}) {
    for (const std::int64_t budget : {1024, 100, 20}) {
      plan::Selector selector = tree_selector(budget);
      selector.terms[0].index.fixed_chunks = fixed;
      ChunkList steps(selector);
      const std::int64_t buffer = std::max<std::int64_t>(1, std::min({std::int64_t{128}, budget / 2, budget - 16}));
      for (std::int64_t tokens = 1; tokens <= 1500; ++tokens) {
        steps.advance(stream.classes, 700, tokens);
        if (tokens < 700) {
          EXPECT_EQ(steps.count(), 0);
        } else if (tokens == 700) {
          EXPECT_EQ(steps.covered(), 700) << "after the prompt the buffer is empty";
        } else {
          ASSERT_LT(tokens - steps.covered(), std::max<std::int64_t>(2, buffer));
          ASSERT_LT(steps.covered(), tokens) << "the current token is in no chunk";
        }
      }
      ChunkList once(selector);
      once.advance(stream.classes, 700, 1500);
      ASSERT_EQ(once.count(), steps.count());
      for (std::int32_t chunk = 0; chunk < once.count(); ++chunk) {
        EXPECT_EQ(once.end(chunk), steps.end(chunk));
        const std::int64_t tokens = once.end(chunk) - once.begin(chunk);
        EXPECT_LE(tokens, 16);
        if (once.end(chunk) != 700 && budget >= 100) {
          EXPECT_GE(tokens, fixed ? 16 : 8);
        }
        EXPECT_EQ(once.chunk_of(once.begin(chunk)), chunk);
        EXPECT_EQ(once.chunk_of(once.end(chunk) - 1), chunk);
      }
    }
  }
}

TEST(Chunks, CoverWhatIsSaidBefore) {
  Stream stream(12, kDim, 1500, false);
  for (const std::int64_t budget : {1024, 100, 20}) {
    ChunkList chunks(tree_selector(budget));
    for (std::int64_t tokens = 650; tokens <= 1500; tokens += 1 + tokens % 41) {
      const std::int32_t count = chunks.count();
      const std::int64_t said = chunks.covered_after(stream.classes, 700, tokens);
      ASSERT_EQ(chunks.count(), count) << "nothing is cut by asking";
      chunks.advance(stream.classes, 700, tokens);
      ASSERT_EQ(chunks.covered(), said);
    }
  }
}

TEST(Chunks, AreIdleUntilTheBufferIsFull) {
  Stream stream(12, kDim, 1500, false);
  for (const std::int64_t budget : {1024, 100, 20}) {
    ChunkList chunks(tree_selector(budget));
    chunks.advance(stream.classes, 700, 700);
    for (int round = 0; round < 20; ++round) {
      const std::int32_t count = chunks.count();
      const std::int64_t idle = chunks.idle_until();
      ChunkList skips = chunks;  // who does not ask before then misses nothing
      chunks.advance(stream.classes, 700, idle);
      ASSERT_EQ(chunks.count(), count);
      ASSERT_EQ(chunks.idle_until(), idle);
      chunks.advance(stream.classes, 700, idle + 1);
      ASSERT_GT(chunks.count(), count);
      skips.advance(stream.classes, 700, idle + 1);
      ASSERT_EQ(skips.count(), chunks.count());
      ASSERT_EQ(skips.covered(), chunks.covered());
    }
  }
}

TEST(KMeans, MembersAreNearestAndEqualRunsAgree) {
  Made made(13);
  std::vector<float> rows;
  std::vector<Row> topics;
  for (int t = 0; t < 10; ++t) {
    const auto topic = made.row(kDim);
    topics.emplace_back(topic.begin(), topic.end());
  }
  for (int r = 0; r < 400; ++r) {
    Row row = topics[static_cast<std::size_t>(r % 10)];
    for (double& x : row) x += 0.1 * made.normal();
    const double length = norm(row);
    for (const double x : row) rows.push_back(static_cast<float>(x / length));
  }
  for (const Seeding seeding : {Seeding::plus_plus, Seeding::sampled_plus_plus}) {
    const Clusters found = spherical_k_means({rows.data(), 400, kDim, 10, seeding});
    const Clusters again = spherical_k_means({rows.data(), 400, kDim, 10, seeding});
    EXPECT_EQ(found.nearest, again.nearest);
    EXPECT_EQ(found.centroids, again.centroids);
    EXPECT_LE(found.count, 10);
    for (std::size_t r = 0; r < 400; ++r) {
      const Row row(rows.begin() + static_cast<std::ptrdiff_t>(r * kDim),
                    rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * kDim));
      const double own = dot(&found.centroids[static_cast<std::size_t>(found.nearest[r]) * kDim], row);
      for (std::size_t c = 0; c < static_cast<std::size_t>(found.count); ++c) {
        EXPECT_LE(dot(&found.centroids[c * kDim], row), own + 1e-5);
      }
    }
    // Ten tight topics far apart are what k-means++ finds: rows of one topic are together.
    for (std::size_t r = 10; r < 400; ++r) EXPECT_EQ(found.nearest[r], found.nearest[r % 10]);
  }
  const std::vector<float> same(5 * kDim, 0.25F);
  EXPECT_EQ(spherical_k_means({same.data(), 5, kDim, 3}).count, 1) << "equal rows are one cluster";
}

TEST(ChunkTree, IsBuiltAsDecided) {
  for (const bool clustered : {false, true}) {
    Stream stream(14, kDim, 3000, clustered);
    ChunkTree tree(tree_selector(512), kDim);
    tree.extend(stream.source(3000), 1000);
    EXPECT_EQ(tree.covered(), 0) << "the tree waits for the whole prompt";
    tree.extend(stream.source(3000), 3000);
    EXPECT_EQ(tree.covered(), 3000);
    const std::int32_t chunks = tree.chunks().count();
    EXPECT_LE(tree.fine().count(), chunks / 2);
    EXPECT_GE(tree.fine().count(), chunks / 2 - chunks / 8) << "few clusters come out empty";
    EXPECT_LE(tree.coarse().count(), std::ceil(std::sqrt(tree.fine().count())));
    expect_tree(tree, stream, 300);
    EXPECT_LT(static_cast<double>(tree.bytes()), 0.06 * 3000 * kDim * 2 * 2);
  }
}

/// What a device finds, taken in, is the tree that extend() builds; it grows and is searched as that one.
TEST(ChunkTree, AnAdoptedTreeIsTheOneThatIsBuilt) {
  for (const std::int64_t tokens : {3000, 3007}) {
    Stream stream(19, kDim, 3200, true);
    ChunkTree built(tree_selector(512), kDim), adopted(tree_selector(512), kDim);
    built.extend(stream.source(3000), tokens);
    EXPECT_FALSE(adopted.cut(stream.classes, 3000, 2999).has_value()) << "the tree waits for the whole prompt";
    const auto cut = adopted.cut(stream.classes, 3000, tokens);
    ASSERT_TRUE(cut.has_value());
    EXPECT_EQ(cut->at, 3000);
    ChunkTree::Parts parts;
    std::vector<float> rows, distances;
    for (std::int32_t chunk = 0; chunk < cut->chunks.count(); ++chunk) {
      const Row row = representative(stream.keys, cut->chunks.begin(chunk), cut->chunks.end(chunk), false);
      for (const double x : row) rows.push_back(static_cast<float>(x));
    }
    const std::int32_t count = cut->chunks.count();
    parts.clusters = spherical_k_means({rows.data(), count, kDim, adopted.clusters_wanted(count)});
    parts.branches = spherical_k_means({parts.clusters.centroids.data(), parts.clusters.count, kDim,
                                        ChunkTree::branches_wanted(parts.clusters.count)});
    for (std::int32_t chunk = 0; chunk < count; ++chunk) {
      double squares = 0;
      for (std::size_t i = 0; i < kDim; ++i) {
        const auto cluster = static_cast<std::size_t>(parts.clusters.nearest[static_cast<std::size_t>(chunk)]);
        const double off = static_cast<double>(rows[static_cast<std::size_t>(chunk) * kDim + i]) -
                           float_from_f16(f16_from_float(parts.clusters.centroids[cluster * kDim + i]));
        squares += off * off;
      }
      distances.push_back(std::nextafter(static_cast<float>(std::sqrt(squares)), 1e30F));
    }
    parts.distances = distances;
    adopted.adopt(*cut, parts);
    EXPECT_FALSE(adopted.cut(stream.classes, 3000, 3100).has_value()) << "it has one";
    for (const std::int64_t now : {tokens, std::int64_t{3200}}) {
      built.extend(stream.source(3000), now);
      adopted.extend(stream.source(3000), now);
      ASSERT_EQ(adopted.fine().count(), built.fine().count());
      ASSERT_EQ(adopted.coarse().count(), built.coarse().count());
      EXPECT_EQ(adopted.covered(), built.covered());
      for (std::int32_t c = 0; c < built.fine().count(); ++c) {
        EXPECT_EQ(adopted.chunks_of(c), built.chunks_of(c));
        EXPECT_NEAR(distance(centroid(adopted.fine(), c), centroid(built.fine(), c)), 0, 1e-3);
        EXPECT_NEAR(adopted.fine().radius(c), built.fine().radius(c), 1e-3);
      }
      expect_tree(adopted, stream, 100);
    }
  }
}

/// A pass that begins before the last two tokens are known, and may be taken back.
TEST(Chunks, DoNotDependOnTokensThatAreTakenBack) {
  Stream stream(12, kDim, 1500, false);
  for (const std::int64_t budget : {1024, 300, 36}) {
    const plan::Selector selector = tree_selector(budget);
    EXPECT_GE(buffered_tokens(selector, 1500), kMostChunk + 2);
    ChunkList steps(selector), ahead(selector);
    steps.advance(stream.classes, 700, 700);
    ahead.advance(stream.classes, 700, 700);
    for (std::int64_t tokens = 701; tokens < 1500; ++tokens) {
      steps.advance(stream.classes, 700, tokens);
      ahead.advance(std::span(stream.classes).first(static_cast<std::size_t>(tokens - 1)), 700, tokens + 1);
      ahead.take_back(tokens);
      ASSERT_GE(ahead.covered(), steps.covered());
      ASSERT_LE(ahead.covered(), tokens - 1);
      ByteWriter to;
      ahead.save(to);
      ByteReader from(to.bytes(), "chunks");
      ChunkList saved(selector);
      ASSERT_NO_THROW(saved.load(from, tokens));
    }
    steps.advance(stream.classes, 700, 1500);
    ahead.advance(stream.classes, 700, 1500);
    ASSERT_EQ(steps.count(), ahead.count());
    for (std::int32_t chunk = 0; chunk < steps.count(); ++chunk) EXPECT_EQ(steps.end(chunk), ahead.end(chunk));
  }
  EXPECT_EQ(buffered_tokens(tree_selector(34), 1500), 17);
  ChunkList late(tree_selector(1024));
  EXPECT_THROW(late.advance(std::span(stream.classes).first(699), 700, 700), InternalError) << "a cut looks at it";
}

TEST(ChunkTree, BoundsHoldOverLazyUpdatesAndRefresh) {
  for (const bool clustered : {false, true}) {
    Stream stream(15, kDim, 2600, clustered);
    ChunkTree tree(tree_selector(256), kDim);
    tree.extend(stream.source(900), 900);
    std::vector<float> fine_radii, coarse_radii;
    int inserted = 0;
    for (int t = 901; t <= 2600; ++t) {
      const std::int32_t before = tree.chunks().count();
      std::vector<Row> centroids;
      for (std::int32_t c = 0; c < tree.fine().count(); ++c) centroids.push_back(centroid(tree.fine(), c));
      tree.extend(stream.source(900), t);
      for (std::int32_t chunk = before; chunk < tree.chunks().count(); ++chunk) {
        ++inserted;
        const Row row = representative(stream.keys, tree.chunks().begin(chunk), tree.chunks().end(chunk), false);
        double best = -2;
        double mine = -2;
        for (std::int32_t c = 0; c < tree.fine().count(); ++c) {
          double product = 0;
          for (std::size_t i = 0; i < kDim; ++i) product += row[i] * centroids[static_cast<std::size_t>(c)][i];
          best = std::max(best, product);
          const auto members = tree.chunks_of(c);
          if (std::find(members.begin(), members.end(), chunk) != members.end()) mine = product;
        }
        ASSERT_NEAR(mine, best, 1e-5) << "a new chunk goes to the nearest cluster";
      }
      if (t % 100 == 50) {
        for (int r = t - 90; r < t - 50; ++r) stream.keys.put(r, stream.made.key(kDim, false));
        tree.refresh(stream.source(900), t - 90, t - 50);
      }
      for (std::int32_t c = 0; c < tree.fine().count(); ++c) {
        if (!fine_radii.empty()) {
          ASSERT_GE(tree.fine().radius(c), fine_radii[static_cast<std::size_t>(c)]);
        }
      }
      for (std::int32_t u = 0; u < tree.coarse().count(); ++u) {
        if (!coarse_radii.empty()) {
          ASSERT_GE(tree.coarse().radius(u), coarse_radii[static_cast<std::size_t>(u)]);
        }
      }
      fine_radii.clear();
      coarse_radii.clear();
      for (std::int32_t c = 0; c < tree.fine().count(); ++c) fine_radii.push_back(tree.fine().radius(c));
      for (std::int32_t u = 0; u < tree.coarse().count(); ++u) coarse_radii.push_back(tree.coarse().radius(u));
      if (t % 100 == 0 || t == 2600) expect_tree(tree, stream, 200);
    }
    EXPECT_GT(inserted, 80);
  }
}

/// The search of methods.md section 5, in double, from what the tree holds. Empty where two candidates are too near to
/// tell apart.
std::vector<std::int32_t> search_by_the_rule(const ChunkTree& tree, const plan::Selector& selector,
                                             const IndexQuery& query) {
  const auto group = selector.terms[0].group;
  const bool whole = selector.terms[0].index.whole_clusters;
  bool unclear = false;
  const auto ranked = [&](const NodeLevel& level, std::vector<std::int32_t> nodes) {
    std::map<std::int32_t, double> score;
    for (const std::int32_t node : nodes) {
      const Row mu = centroid(level, node);
      score[node] = pooled(group, query, kDim,
                           [&](const float* q) { return dot(q, mu) + norm(Row(q, q + kDim)) * level.radius(node); });
    }
    std::sort(nodes.begin(), nodes.end(), [&](std::int32_t a, std::int32_t b) { return score[a] > score[b]; });
    for (std::size_t i = 1; i < nodes.size(); ++i) {
      unclear = unclear || score[nodes[i - 1]] - score[nodes[i]] < 1e-6 * std::fabs(score[nodes[0]]);
    }
    return nodes;
  };
  std::vector<std::int32_t> all(static_cast<std::size_t>(tree.coarse().count()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::int32_t> candidates;
  std::int64_t held = 0;
  int branches = 0;
  for (const std::int32_t branch : ranked(tree.coarse(), all)) {
    if (branches >= 4 && held >= 4 * query.budget) break;
    ++branches;
    const auto [first, last] = tree.clusters_of(branch);
    for (std::int32_t c = first; c < last; ++c) {
      candidates.push_back(c);
      for (const std::int32_t chunk : tree.chunks_of(c)) held += tree.chunks().end(chunk) - tree.chunks().begin(chunk);
    }
  }
  std::set<std::int32_t> set;
  for (std::int32_t t = 0; t < selector.sink; ++t) set.insert(t);
  for (auto t = static_cast<std::int32_t>(std::min(tree.covered(), query.tokens - 1)); t < query.tokens; ++t)
    set.insert(t);
  bool full = false;
  for (const std::int32_t c : ranked(tree.fine(), candidates)) {
    if (full || static_cast<std::int64_t>(set.size()) >= query.budget) break;
    for (const std::int32_t chunk : tree.chunks_of(c)) {
      std::set<std::int32_t> with = set;
      for (std::int64_t t = tree.chunks().begin(chunk); t < tree.chunks().end(chunk); ++t) {
        with.insert(static_cast<std::int32_t>(t));
      }
      full = !whole && static_cast<std::int64_t>(with.size()) > query.budget;
      if (full) break;
      set = with;
    }
  }
  if (unclear) return {};
  return {set.begin(), set.end()};
}

TEST(ChunkTree, SearchIsTheRule) {
  int compared = 0;
  for (const bool clustered : {false, true}) {
    for (const bool whole : {false, true}) {
      Stream stream(clustered ? 16 : 17, kDim, 4200, clustered);
      plan::Selector selector = tree_selector(256);
      selector.terms[0].index.whole_clusters = whole;
      selector.terms[0].group = clustered ? plan::GroupPooling::max_score : plan::GroupPooling::mean_score;
      ChunkTree tree(selector, kDim);
      IndexScratch scratch;
      std::vector<std::int32_t> set;
      for (int t = 4000; t <= 4200; t += 10) {
        tree.extend(stream.source(4000), t);
        const std::vector<float> q = stream.made.queries(3, kDim);
        const IndexQuery query{q.data(), 3, 0.2F, t, 256};
        EXPECT_GT(tree.search(query, scratch, set), 0U);
        expect_set(set, t);
        if (whole) {
          EXPECT_GE(set.size(), 256U);
        } else {
          EXPECT_LE(set.size(), 256U);
          EXPECT_GT(set.size(), 256U - 16);
        }
        for (int s = 0; s < 16; ++s) EXPECT_TRUE(contains(set, s));
        const std::vector<std::int32_t> expected = search_by_the_rule(tree, selector, query);
        if (expected.empty()) continue;
        ++compared;
        EXPECT_EQ(set, expected);
      }
    }
  }
  EXPECT_GT(compared, 60);
}

TEST(ChunkTree, AShortPromptIsIndexedWhenTheBudgetNoLongerCoversIt) {
  Stream stream(18, kDim, 1200);
  ChunkTree steps(tree_selector(400), kDim);
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  for (int t = 1; t <= 1200; ++t) {
    steps.extend(stream.source(30), t);
    EXPECT_EQ(steps.covered() > 0, t > 400);
    const std::vector<float> q = stream.made.queries(2, kDim);
    steps.search({q.data(), 2, 1, t, 400}, scratch, set);
    expect_set(set, t);
    if (t <= 400) {
      EXPECT_EQ(set.size(), static_cast<std::size_t>(t));
    } else {
      EXPECT_LE(set.size(), 400U);
    }
    if (t == 401) {
      EXPECT_GT(steps.fine().count(), 8) << "clusters of what was generated, not of the prompt alone";
    }
  }
  expect_tree(steps, stream, 100);
  // Late, in one call, and from a copy: the same tree.
  ChunkTree late(tree_selector(400), kDim);
  const auto copy = late.clone();
  late.extend(stream.source(30), 1200);
  EXPECT_EQ(copy->covered(), 0);
  EXPECT_EQ(late.bytes(), steps.bytes());
  const auto twin = late.clone();
  for (int trial = 0; trial < 20; ++trial) {
    const std::vector<float> q = stream.made.queries(2, kDim);
    std::vector<std::int32_t> other, third;
    steps.search({q.data(), 2, 1, 1200, 400}, scratch, set);
    late.search({q.data(), 2, 1, 1200, 400}, scratch, other);
    twin->search({q.data(), 2, 1, 1200, 400}, scratch, third);
    EXPECT_EQ(set, other);
    EXPECT_EQ(set, third);
  }
}

TEST(ChunkTree, MaxPoolingAndMeanQueryAreTaken) {
  Stream stream(19, kDim, 900);
  plan::Selector selector = tree_selector(200);
  selector.terms[0].index.max_pooling = true;
  selector.terms[0].index.chunks_per_cluster = 4;
  selector.terms[0].group = plan::GroupPooling::mean_query;
  ChunkTree tree(selector, kDim);
  tree.extend(stream.source(900), 900);
  EXPECT_LE(tree.fine().count(), tree.chunks().count() / 4);
  for (std::int32_t c = 0; c < tree.fine().count(); ++c) {
    for (const std::int32_t chunk : tree.chunks_of(c)) {
      const Row row = representative(stream.keys, tree.chunks().begin(chunk), tree.chunks().end(chunk), true);
      EXPECT_LE(distance(row, centroid(tree.fine(), c)), tree.fine().radius(c) + 3e-7);
    }
  }
  IndexScratch scratch;
  std::vector<std::int32_t> set;
  const std::vector<float> q = stream.made.queries(4, kDim);
  const IndexQuery query{q.data(), 4, 1, 900, 200};
  tree.search(query, scratch, set);
  const auto expected = search_by_the_rule(tree, selector, query);
  if (!expected.empty()) {
    EXPECT_EQ(set, expected);
  }
}

}  // namespace
}  // namespace glimpse::kv::testing
