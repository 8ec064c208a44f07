// The search of trees of chunks against plain loops that follow LycheeCluster, section 3.3.
#include "glimpse/kernels/cuda/trees.h"

#include "device_bed.h"

namespace glimpse::kernels::cuda::test {
namespace {

class Trees : public CudaTest {};

/// A tree of random nodes.
struct HostTree {
  std::vector<std::uint16_t> centroids;
  std::vector<float> radii;
  std::vector<std::int32_t> last_cluster, branch_tokens, costs, cluster_of, ends;
  std::int32_t branches = 0, clusters = 0;
  bool alone = false;

  std::int32_t begin_of(std::size_t chunk) const { return chunk == 0 ? 0 : ends[chunk - 1]; }
};

struct Size {
  std::int32_t branches = 1, clusters = 1;
  std::int32_t tokens = 16;  ///< that it covers
  std::int32_t sink = 16;
  bool equal = false;  ///< all nodes are alike
  bool alone = false;  ///< each token is a chunk
};

HostTree random_tree(const Size& of, int dim, std::mt19937& random) {
  HostTree tree;
  tree.branches = of.branches;
  tree.clusters = of.clusters;
  tree.alone = of.alone;
  std::normal_distribution<float> normal;
  for (std::int32_t node = 0; node < of.branches + of.clusters; ++node) {
    std::vector<float> row(static_cast<std::size_t>(dim));
    float squares = 0;
    for (float& x : row) {
      x = of.equal ? 1.0F : normal(random);
      squares += x * x;
    }
    for (const float x : row) tree.centroids.push_back(f16_from_float(x / std::sqrt(squares)));
    tree.radii.push_back(of.equal ? 0.25F : std::abs(normal(random)));
  }
  std::vector<std::int32_t> branch_of;
  for (std::int32_t branch = 0; branch < of.branches; ++branch) {
    const auto last = static_cast<std::int32_t>(std::int64_t{branch + 1} * of.clusters / of.branches);
    tree.last_cluster.push_back(last);
    while (static_cast<std::int32_t>(branch_of.size()) < last) branch_of.push_back(branch);
  }
  tree.branch_tokens.assign(static_cast<std::size_t>(of.branches), 0);
  tree.costs.assign(static_cast<std::size_t>(of.clusters), 0);
  for (std::int32_t at = 0; at < of.tokens;) {
    const std::int32_t length = of.alone ? 1 : 8 + static_cast<std::int32_t>(random() % 9);
    const std::int32_t end = std::min(of.tokens, at + length);
    const auto cluster = static_cast<std::int32_t>(random() % static_cast<unsigned>(of.clusters));
    tree.ends.push_back(end);
    tree.cluster_of.push_back(cluster);
    tree.branch_tokens[static_cast<std::size_t>(branch_of[static_cast<std::size_t>(cluster)])] += end - at;
    tree.costs[static_cast<std::size_t>(cluster)] += std::max(0, end - std::max(at, of.sink));
    at = end;
  }
  return tree;
}

/// Scores of all nodes, pooled as the search says.
std::vector<double> scores_of(const OperationsBed& bed, const HostTree& tree, const TreeSearch& search, float scale) {
  const std::size_t dim = bed.dim();
  const std::size_t head = static_cast<std::size_t>((search.row * bed.of.kv_heads + search.head) * bed.of.group);
  std::vector<std::vector<double>> queries;
  for (int j = 0; j < bed.of.group; ++j) {
    if (search.query >= 0 && j != search.query) continue;
    const float* from = bed.q.data() + (head + static_cast<std::size_t>(j)) * dim;
    queries.emplace_back(from, from + dim);
  }
  if (search.mean_query != 0) {
    for (std::size_t j = 1; j < queries.size(); ++j) {
      for (std::size_t i = 0; i < dim; ++i) queries[0][i] += queries[j][i];
    }
    for (double& x : queries[0]) x /= static_cast<double>(queries.size());
    queries.resize(1);
  }
  std::vector<double> scores;
  for (std::size_t node = 0; node < tree.radii.size(); ++node) {
    const bool mean = search.pooling == Pooling::mean_score;
    double pooled = mean ? 0 : -1e30;
    for (const std::vector<double>& query : queries) {
      double dot = 0, squares = 0;
      for (std::size_t i = 0; i < dim; ++i) {
        dot += query[i] * static_cast<double>(float_from_f16(tree.centroids[node * dim + i]));
        squares += query[i] * query[i];
      }
      const double score =
          (dot + std::sqrt(squares) * static_cast<double>(tree.radii[node])) * static_cast<double>(scale);
      pooled = mean ? pooled + score / static_cast<double>(queries.size()) : std::max(pooled, score);
    }
    scores.push_back(pooled);
  }
  return scores;
}

std::vector<std::int32_t> by_score(const std::vector<double>& scores, std::vector<std::int32_t> nodes) {
  std::stable_sort(nodes.begin(), nodes.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  return nodes;
}

std::vector<std::int32_t> want_of(const OperationsBed& bed, const HostTree& tree, const TreeSearch& search, float scale,
                                  std::int32_t& opened) {
  const std::vector<double> scores = scores_of(bed, tree, search, scale);
  std::vector<std::int32_t> branches(static_cast<std::size_t>(tree.branches));
  std::iota(branches.begin(), branches.end(), 0);
  std::vector<std::int32_t> clusters;
  std::int64_t tokens = 0;
  int number = 0;
  for (const std::int32_t branch : by_score(scores, branches)) {
    if (number >= search.least_branches && tokens >= search.candidates) break;
    ++number;
    tokens += tree.branch_tokens[static_cast<std::size_t>(branch)];
    for (std::int32_t c = branch == 0 ? 0 : tree.last_cluster[static_cast<std::size_t>(branch) - 1];
         c < tree.last_cluster[static_cast<std::size_t>(branch)]; ++c) {
      clusters.push_back(tree.branches + c);
    }
  }
  opened = static_cast<std::int32_t>(clusters.size());
  std::sort(clusters.begin(), clusters.end());
  const std::int32_t slots = bed.seen(static_cast<std::size_t>(search.row));
  std::vector<char> in(static_cast<std::size_t>(slots), 0);
  std::fill_n(in.begin(), search.sink, 1);
  std::fill(in.begin() + search.tail, in.end(), 1);
  std::int32_t room = search.room;
  bool full = false;
  for (const std::int32_t node : by_score(scores, clusters)) {
    if (full || room <= 0) break;
    for (std::size_t chunk = 0; chunk < tree.ends.size() && !full; ++chunk) {
      if (tree.cluster_of[chunk] != node - tree.branches) continue;
      const std::int32_t begin = std::max(tree.begin_of(chunk), search.sink);
      const std::int32_t end = std::min(tree.ends[chunk], search.tail);
      const std::int32_t cost = std::max(0, end - begin);
      full = search.whole == 0 && cost > room;
      if (full) break;
      room -= cost;
      for (std::int32_t slot = begin; slot < end; ++slot) in[static_cast<std::size_t>(slot)] = 1;
    }
  }
  std::vector<std::int32_t> set;
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    if (in[static_cast<std::size_t>(slot)] != 0) set.push_back(slot);
  }
  return set;
}

/// The arrays of a tree on the device.
struct DeviceTree {
  Array<std::uint16_t> centroids;
  Array<float> radii;
  Array<std::int32_t> last_cluster, branch_tokens, costs, cluster_of, ends;
  Tree tree;

  DeviceTree(Stream& stream, const HostTree& of)
      : centroids(stream, of.centroids),
        radii(stream, of.radii),
        last_cluster(stream, of.last_cluster),
        branch_tokens(stream, of.branch_tokens),
        costs(stream, of.costs),
        cluster_of(stream, of.cluster_of),
        ends(stream, of.ends) {
    tree = {centroids.pointer().raw(),
            radii.pointer().raw(),
            last_cluster.pointer().raw(),
            branch_tokens.pointer().raw(),
            costs.pointer().raw(),
            cluster_of.pointer().raw(),
            of.alone ? nullptr : ends.pointer().raw(),
            of.branches,
            of.clusters,
            static_cast<std::int32_t>(of.ends.size())};
  }
};

TEST_F(Trees, SearchesFollowThePaper) {
  std::mt19937 random(11);
  for (const OperationsCase& c :
       {OperationsCase{.name = "dim 64", .kv_heads = 2, .group = 3, .lengths = {300, 1700}},
        OperationsCase{.name = "dim 96", .dim = 96, .kv_heads = 1, .group = 1, .lengths = {900}},
        OperationsCase{.name = "dim 128", .dim = 128, .kv_heads = 2, .group = 7, .lengths = {30000}},
        OperationsCase{.name = "dim 256", .dim = 256, .kv_heads = 1, .group = 16, .lengths = {700}},
        OperationsCase{.name = "a large group", .dim = 64, .kv_heads = 1, .group = 21, .lengths = {500}}}) {
    SCOPED_TRACE(c.name);
    OperationsBed bed(c, KvType::bf16, 23);
    const DeviceBed on(*stream_, bed);
    std::vector<HostTree> trees;
    std::vector<DeviceTree> device_trees;
    std::vector<TreeSearch> searches;
    int most = 0;
    trees.reserve(1000);
    device_trees.reserve(1000);
    for (const RowHead at : bed.row_heads) {
      const std::int32_t slots = bed.seen(static_cast<std::size_t>(at.row));
      for (int variant = 0; variant < 22; ++variant) {
        Size of;
        of.tokens = slots - 1 - static_cast<std::int32_t>(random() % 100);
        of.clusters = variant == 5 ? 1 : std::max(2, of.tokens / 24);
        of.branches = std::min(of.clusters, variant == 6 ? 64 : variant == 7 ? 1 : 9);
        of.equal = variant == 3 || variant == 13 || variant == 19;
        of.alone = variant >= 12;
        of.sink = variant % 3 == 2 ? 13 : 16;
        trees.push_back(random_tree(of, c.dim, random));
        device_trees.emplace_back(*stream_, trees.back());
        TreeSearch search;
        search.tree = device_trees.back().tree;
        search.row = at.row;
        search.head = at.head;
        search.query = variant == 4 ? c.group - 1 : -1;
        search.set = static_cast<std::int32_t>(searches.size());
        search.pooling = variant == 1 ? Pooling::mean_score : Pooling::max_score;
        search.mean_query = variant == 2 ? 1 : 0;
        search.whole = variant == 8 ? 1 : 0;
        search.sink = of.sink;
        search.tail = of.tokens;
        if (variant >= 17) {  // a window of tokens that have clusters
          const std::int32_t window = variant == 17 ? 1 : variant == 20 ? of.tokens : of.tokens / 3;
          search.tail = std::max(of.sink, of.tokens - window);
        }
        search.room = variant == 9 || variant == 14    ? 0
                      : variant == 10 || variant == 15 ? slots
                      : variant == 11 || variant == 16 ? 3
                      : variant == 21                  ? slots / 2
                                                       : slots / 5;
        search.least_branches = 4;
        search.candidates = variant == 10 ? 1000000 : 4 * search.room;
        most = std::max(most, of.clusters);
        searches.push_back(search);
      }
    }
    const Array<TreeSearch> asked(*stream_, searches);
    const std::size_t capacity = bed.stride;
    const Array<std::int32_t> slots(*stream_, std::vector<std::int32_t>(searches.size() * capacity, -7));
    const Array<std::int32_t> count(*stream_, searches.size()), opened(*stream_, searches.size());
    search_trees(*stream_, {on.cache(),
                            on.rows(),
                            on.q(),
                            c.group,
                            0.125F,
                            asked.constant(),
                            static_cast<int>(searches.size()),
                            most,
                            {slots.pointer(), count.pointer(), static_cast<std::int32_t>(capacity),
                             static_cast<int>(searches.size())},
                            opened.pointer()});
    const std::vector<std::int32_t> got = slots.values(), counts = count.values(), read = opened.values();
    for (std::size_t i = 0; i < searches.size(); ++i) {
      SCOPED_TRACE("search " + std::to_string(i));
      std::int32_t clusters = 0;
      const std::vector<std::int32_t> want = want_of(bed, trees[i], searches[i], 0.125F, clusters);
      EXPECT_EQ(read[i], clusters);
      if (static_cast<std::int32_t>(want.size()) == bed.seen(static_cast<std::size_t>(searches[i].row))) {
        ASSERT_EQ(counts[i], kEverything);
        continue;
      }
      ASSERT_EQ(counts[i], static_cast<std::int32_t>(want.size()));
      for (std::size_t e = 0; e < want.size(); ++e) ASSERT_EQ(got[i * capacity + e], want[e]) << "entry " << e;
    }
  }
}

/// What a search of chunks that have scores gives, by plain loops. `scores`: of the row's and head's queries.
std::vector<std::int32_t> chosen_chunks(const TreeSearch& search, const std::vector<std::int32_t>& ends,
                                        std::vector<std::span<const float>> scores, std::int32_t slots) {
  if (search.query >= 0) scores = {scores[static_cast<std::size_t>(search.query)]};
  if (search.mean_query != 0) scores.resize(1);
  const bool mean = search.pooling == Pooling::mean_score;
  std::vector<double> pooled(ends.size());
  std::vector<std::int32_t> chunks(ends.size());
  std::iota(chunks.begin(), chunks.end(), 0);
  for (std::size_t chunk = 0; chunk < ends.size(); ++chunk) {
    pooled[chunk] = mean ? 0 : -std::numeric_limits<double>::infinity();
    for (const std::span<const float> row : scores) {
      const double value = row[chunk];
      pooled[chunk] = mean ? pooled[chunk] + value : std::max(pooled[chunk], value);
    }
  }
  std::vector<char> in(static_cast<std::size_t>(slots), 0);
  std::fill_n(in.begin(), search.sink, 1);
  std::fill(in.begin() + search.tail, in.end(), 1);
  std::int32_t room = search.room;
  for (const std::int32_t chunk : by_score(pooled, chunks)) {
    const auto at = static_cast<std::size_t>(chunk);
    const std::int32_t begin = std::max(chunk == 0 ? 0 : ends[at - 1], search.sink);
    const std::int32_t end = std::min(ends[at], search.tail);
    if (end - begin > room || search.room == 0) break;
    room -= std::max(0, end - begin);
    for (std::int32_t slot = begin; slot < end; ++slot) in[static_cast<std::size_t>(slot)] = 1;
  }
  std::vector<std::int32_t> set;
  for (std::int32_t slot = 0; slot < slots; ++slot) {
    if (in[static_cast<std::size_t>(slot)] != 0) set.push_back(slot);
  }
  return set;
}

/// Scores are whole eighths, so that many are equal and sums of them are exact.
TEST_F(Trees, ChunksAreChosenByTheirScores) {
  std::mt19937 random(12);
  for (const OperationsCase& c :
       {OperationsCase{.name = "a batch", .kv_heads = 2, .group = 3, .lengths = {300, 1700, 40}},
        OperationsCase{.name = "alone", .dim = 128, .kv_heads = 3, .group = 1, .lengths = {900}},
        OperationsCase{.name = "long", .dim = 128, .kv_heads = 1, .group = 16, .lengths = {15000}}}) {
    SCOPED_TRACE(c.name);
    OperationsBed bed(c, KvType::bf16, 29);
    const DeviceBed on(*stream_, bed);
    const auto group = static_cast<std::size_t>(c.group);
    std::vector<float> scores;
    bed.fill(scores, bed.queries() * bed.stride);
    for (float& score : scores) score = std::round(8 * score) / 8;
    std::vector<std::vector<std::int32_t>> ends;
    std::vector<Array<std::int32_t>> device_ends;
    std::vector<TreeSearch> searches;
    std::size_t most = 0;
    for (const RowHead at : bed.row_heads) {
      const std::int32_t slots = bed.seen(static_cast<std::size_t>(at.row));
      for (int variant = 0; variant < 11; ++variant) {
        const std::int32_t tokens = slots - 1 - static_cast<std::int32_t>(random() % 20);
        std::vector<std::int32_t>& of = ends.emplace_back();
        while (of.empty() || of.back() < tokens) {
          const std::int32_t length = variant == 10 ? 1 : 8 + static_cast<std::int32_t>(random() % 9);
          of.push_back(std::min(tokens, (of.empty() ? 0 : of.back()) + length));
        }
        device_ends.emplace_back(*stream_, of);
        most = std::max(most, of.size());
        TreeSearch search;
        search.scored = 1;
        search.tree.ends = device_ends.back().constant().raw();
        search.tree.clusters = search.tree.chunks = static_cast<std::int32_t>(of.size());
        search.row = at.row;
        search.head = at.head;
        search.query = variant == 4 ? c.group - 1 : -1;
        search.set = static_cast<std::int32_t>(searches.size());
        search.pooling = variant == 1 && (group & (group - 1)) == 0 ? Pooling::mean_score : Pooling::max_score;
        search.mean_query = variant == 2 ? 1 : 0;
        search.sink = variant == 3 ? 0 : 11;
        search.tail = variant == 5 ? tokens - 5 : tokens;
        search.room = variant == 6 ? 0 : variant == 7 ? slots : variant == 8 ? 5 : variant == 9 ? slots / 2 : slots / 5;
        searches.push_back(search);
      }
    }
    const Array<TreeSearch> asked(*stream_, searches);
    const std::size_t capacity = bed.stride;
    const Array<float> device_scores(*stream_, scores);
    const Array<std::int32_t> slots(*stream_, std::vector<std::int32_t>(searches.size() * capacity, -7));
    const Array<std::int32_t> count(*stream_, searches.size()), opened(*stream_, searches.size());
    search_trees(*stream_, {.cache = on.cache(),
                            .rows = on.rows(),
                            .q = on.q(),
                            .group = c.group,
                            .searches = asked.constant(),
                            .count = static_cast<int>(searches.size()),
                            .most = static_cast<int>(most),
                            .sets = {slots.pointer(), count.pointer(), static_cast<std::int32_t>(capacity),
                                     static_cast<int>(searches.size())},
                            .opened = opened.pointer(),
                            .scores = {device_scores.pointer(), {}, bed.stride}});
    const std::vector<std::int32_t> got = slots.values(), counts = count.values(), read = opened.values();
    for (std::size_t i = 0; i < searches.size(); ++i) {
      SCOPED_TRACE("search " + std::to_string(i));
      const TreeSearch& search = searches[i];
      const std::size_t first = static_cast<std::size_t>(search.row * c.kv_heads + search.head) * group;
      std::vector<std::span<const float>> rows;
      for (std::size_t j = 0; j < group; ++j) rows.push_back(std::span(scores).subspan((first + j) * bed.stride));
      const std::int32_t seen = bed.seen(static_cast<std::size_t>(search.row));
      const std::vector<std::int32_t> want = chosen_chunks(search, ends[i], rows, seen);
      EXPECT_EQ(read[i], search.room > 0 ? search.tree.chunks : 0);
      if (static_cast<std::int32_t>(want.size()) == seen) {
        ASSERT_EQ(counts[i], kEverything);
        continue;
      }
      ASSERT_EQ(counts[i], static_cast<std::int32_t>(want.size()));
      for (std::size_t e = 0; e < want.size(); ++e) ASSERT_EQ(got[i * capacity + e], want[e]) << "entry " << e;
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::cuda::test
