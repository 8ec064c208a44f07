// What the host works out for searches on a GPU: rows of chunks, flat clusters, and what each search may take. Plain
// loops in place of the kernels choose by it what the index on the host chooses. No GPU is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "glimpse/attention/cuda/flat_tree.h"
#include "glimpse/attention/cuda/flat_units.h"
#include "glimpse/attention/cuda/layer_lists.h"
#include "glimpse/attention/cuda/set_source.h"
#include "glimpse/kv/index/chunk_bounds.h"
#include "tests/kv/index/support.h"

namespace glimpse::attention::cuda {
namespace {

constexpr int kDim = 32, kGroup = 2, kPrompt = 700, kTokens = 1100;

plan::Plan plan_of(const plan::Selector& selector) {
  plan::Plan plan = plan::dense_plan({"llama", "", 1, kGroup, 1, kDim, 4096});
  plan.selectors.push_back(selector);
  plan.role(0, 0) = {.kind = plan::RoleKind::select, .selector = 0, .attends_set = true};
  return plan;
}

plan::Selector selector_of(plan::Source source, std::int64_t budget, int sink, int local) {
  plan::Selector selector = kv::testing::selector_of(source, budget);
  selector.sink = sink;
  selector.local = local;
  return selector;
}

/// A sequence with one index, at some length.
class Searched {
 public:
  Searched(const plan::Selector& selector, std::uint64_t seed)
      : program_(plan_of(selector)), state_(program_.plan()), stream_(seed, kDim, kTokens) {
    state_.boundaries = stream_.classes;
    state_.prompt_tokens = kPrompt;
    entry_.rows.program = &program_;
    entry_.rows.state = &state_;
    entry_.dense = false;
    entry_.trees = &trees_;
  }

  void grow(std::int64_t tokens) {
    index().extend(stream_.source(kPrompt), tokens);
    trees_.covered[0] = static_cast<std::int32_t>(index().covered());
    entry_.tokens = tokens;
    entry_.rows.position = tokens - 1;
    queries_ = stream_.made.queries(kGroup, kDim);
  }
  /// What the host's index chooses.
  std::vector<std::int32_t> set() {
    std::vector<std::int32_t> set;
    index().search(query(), scratch_, set);
    return set;
  }
  kv::IndexQuery query() const {
    kv::IndexQuery query;
    query.queries = queries_.data();
    query.group = kGroup;
    query.scale = 0.25F;
    query.tokens = entry_.tokens;
    query.budget = plan::budget_tokens(select().selector->budget, entry_.tokens);
    return query;
  }
  kv::KeyIndex& index() { return *state_.indices[0]; }
  const SelectOp& select() const { return program_.select(0, 0); }
  const PassEntry& entry() const { return entry_; }
  kv::testing::Keys& keys() { return stream_.keys; }
  kv::IndexScratch& scratch() { return scratch_; }

 private:
  Program program_;
  SequenceState state_;
  kv::testing::Stream stream_;
  std::vector<float> queries_;
  kv::IndexScratch scratch_;
  SearchedTrees trees_{.copies = {}, .covered = {0}};
  PassEntry entry_;
};

std::vector<std::int32_t> by_score(const std::vector<float>& scores) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  return order;
}

/// A set of what is taken and of what is in it whatever the scores.
std::vector<std::int32_t> set_of(const kernels::cuda::TreeSearch& search, std::vector<std::int32_t> taken,
                                 std::int64_t tokens) {
  for (std::int32_t token = 0; token < search.sink; ++token) taken.push_back(token);
  for (std::int32_t token = search.tail; token < tokens; ++token) taken.push_back(token);
  std::sort(taken.begin(), taken.end());
  return taken;
}

TEST(CudaSearches, ChunksAreThoseOfTheHost) {
  for (const plan::Digest digest : {plan::Digest::min_max, plan::Digest::sphere, plan::Digest::mean_deviation}) {
    for (const int budget : {60, 300}) {
      plan::Selector selector = selector_of(plan::Source::chunk_tree, budget, 20, 64);
      selector.terms[0].index.chunk_bounds = true;
      selector.terms[0].index.digest = digest;
      Searched of(selector, 5);
      ASSERT_EQ(source_of(of.select()), SetSource::units);
      ASSERT_TRUE(searches_chunks(of.select()));
      const auto& index = dynamic_cast<const kv::ChunkBounds&>(of.index());
      for (std::int64_t tokens = kPrompt + 1; tokens <= kTokens; tokens += 7) {
        of.grow(tokens);
        GroupLayer layer;
        add_unit_search(of.entry(), of.select(), 3, layer);
        ASSERT_EQ(layer.units.size(), 1U);
        ASSERT_EQ(layer.trees.size(), 1U);
        ASSERT_TRUE(layer.choices.empty());
        const kernels::cuda::TreeSearch& search = layer.trees.front();
        EXPECT_EQ(search.scored, 1);
        EXPECT_EQ(search.row, 3);
        EXPECT_EQ(layer.units.front().first, 0);
        ASSERT_EQ(layer.units.front().last, index.chunks().count());
        EXPECT_LE(index.chunks().count(), unit_stride(of.entry(), of.select()));
        std::vector<float> scores(static_cast<std::size_t>(index.chunks().count()));
        index.digests().score(kv::group_queries(plan::GroupPooling::max_score, of.query(), kDim, of.scratch()), 0,
                              index.chunks().count(), of.scratch(), scores.data());
        std::vector<std::int32_t> taken;
        std::int64_t room = search.room;
        for (const std::int32_t chunk : by_score(scores)) {
          const std::int64_t begin = std::max<std::int64_t>(index.chunks().begin(chunk), search.sink);
          const std::int64_t end = std::min<std::int64_t>(index.chunks().end(chunk), search.tail);
          if (end - begin > room) break;
          room -= std::max<std::int64_t>(0, end - begin);
          for (std::int64_t token = begin; token < end; ++token) taken.push_back(static_cast<std::int32_t>(token));
        }
        const std::vector<std::int32_t> want = of.set();
        ASSERT_EQ(set_of(search, taken, tokens), want) << tokens;
        EXPECT_LE(std::ssize(want), unit_capacity(of.entry(), of.select()));
      }
    }
  }
}

TEST(CudaSearches, RowsOfChunksHoldTheirKeys) {
  plan::Selector selector = selector_of(plan::Source::chunk_tree, 200, 20, 64);
  selector.terms[0].index.chunk_bounds = true;
  Searched of(selector, 6);
  of.grow(kTokens);
  const UnitShape shape = shape_of_units(of.index());
  EXPECT_EQ(shape.kind, kernels::cuda::UnitKind::bounds);
  EXPECT_EQ(shape.width, kDim);
  ASSERT_EQ(shape.values, 2 * kDim);
  const kv::ChunkList* const chunks = chunks_of(of.index());
  ASSERT_NE(chunks, nullptr);
  ASSERT_EQ(shape.count, chunks->count());
  EXPECT_TRUE(marked_units(of.index()).empty());
  std::vector<float> row(2 * kDim);
  for (std::int32_t chunk = 0; chunk < shape.count; ++chunk) {
    write_unit(of.index(), chunk, row);
    for (std::size_t i = 0; i < kDim; ++i) {
      double least = 1e30, most = -1e30;
      for (std::int64_t token = chunks->begin(chunk); token < chunks->end(chunk); ++token) {
        least = std::min(least, of.keys().key(token)[i]);
        most = std::max(most, of.keys().key(token)[i]);
      }
      ASSERT_EQ(row[i], static_cast<float>(least));
      ASSERT_EQ(row[kDim + i], static_cast<float>(most));
    }
  }
}

/// A window, a sink that the prompt ends in, and both.
TEST(CudaSearches, ClustersAreThoseOfTheHost) {
  for (const int sink : {16, kPrompt + 30}) {
    for (const int local : {0, 1, 90, 400}) {
      for (const bool counts : {false, true}) {
        plan::Selector selector = selector_of(plan::Source::token_clusters, sink + 150, sink, local);
        selector.counts_local = counts;
        selector.terms[0].index.tokens_per_cluster = 20;
        selector.terms[0].index.new_tokens = 60;
        Searched of(selector, 7);
        for (std::int64_t tokens = std::max(sink, kPrompt) + 170; tokens <= kTokens; tokens += 13) {
          SCOPED_TRACE(tokens);
          of.grow(tokens);
          GroupLayer layer;
          ASSERT_EQ(add_tree_searches(of.entry(), std::span(&of.select(), 1), 0, layer), 1U);
          ASSERT_EQ(layer.trees.size(), 1U);
          const kernels::cuda::TreeSearch& search = layer.trees.front();
          const auto& index = dynamic_cast<const kv::TokenClusters&>(of.index());
          const FlatTree flat = flatten(index, sink);
          const auto cluster_of = [&](std::int32_t token) {
            return static_cast<std::int32_t>(flat.words[flat.cluster_of + static_cast<std::size_t>(token)]);
          };
          std::vector<float> scores;
          std::vector<std::int32_t> costs;
          for (std::int32_t cluster = 0; cluster < index.clusters(); ++cluster) {
            const kv::testing::Row mean(index.mean_of(cluster).begin(), index.mean_of(cluster).end());
            double best = -1e30;
            for (int j = 0; j < kGroup; ++j)
              best = std::max(best, kv::testing::dot(of.query().queries + j * kDim, mean));
            scores.push_back(static_cast<float>(best));
            costs.push_back(static_cast<std::int32_t>(flat.words[flat.costs + static_cast<std::size_t>(cluster)]));
          }
          const auto covered = static_cast<std::int32_t>(index.covered());
          for (std::int32_t token = search.tail; token < covered; ++token) {
            --costs[static_cast<std::size_t>(cluster_of(token))];
          }
          std::vector<std::int32_t> taken;
          std::int32_t room = search.room;
          for (const std::int32_t cluster : by_score(scores)) {
            std::int32_t left = std::min(room, costs[static_cast<std::size_t>(cluster)]);
            room -= left;
            for (std::int32_t token = search.sink; token < std::min(covered, search.tail); ++token) {
              if (left == 0) break;
              if (cluster_of(token) != cluster) continue;
              taken.push_back(token);
              --left;
            }
            EXPECT_EQ(left, 0) << "a cluster has as many tokens as it costs";
          }
          const std::vector<std::int32_t> want = of.set();
          ASSERT_EQ(set_of(search, taken, tokens), want);
          EXPECT_LE(std::ssize(want), tree_capacity(of.entry(), of.select()));
          for (std::int64_t token = tokens - std::max(local, 1); token < tokens; ++token) {
            EXPECT_TRUE(kv::testing::contains(want, token));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace glimpse::attention::cuda
