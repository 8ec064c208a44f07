// What the host works out for searches on a GPU: flat clusters, and what each search may take. Plain
// loops in place of the kernels choose by it what the index on the host chooses. No GPU is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "glimpse/attention/cuda/flat_tree.h"
#include "glimpse/attention/cuda/layer_lists.h"
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
    entry_.covered = &covered_;
  }

  void grow(std::int64_t tokens) {
    index().extend(stream_.source(kPrompt), tokens);
    covered_ = static_cast<std::int32_t>(index().covered());
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

 private:
  Program program_;
  SequenceState state_;
  kv::testing::Stream stream_;
  std::vector<float> queries_;
  kv::IndexScratch scratch_;
  std::int32_t covered_ = 0;
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
