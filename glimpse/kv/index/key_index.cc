#include "glimpse/kv/index/key_index.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kv/index/chunk_bounds.h"
#include "glimpse/kv/index/chunk_tree.h"
#include "glimpse/kv/index/gate_index.h"
#include "glimpse/kv/index/landmarks.h"
#include "glimpse/kv/index/page_bounds.h"
#include "glimpse/kv/index/token_clusters.h"

namespace glimpse::kv {
namespace {

void require(bool ok, const std::string& problem) {
  if (!ok) throw UserError("key index: " + problem);
}

void check_tree(const plan::Selector& selector) {
  const plan::IndexOptions& options = selector.terms.front().index;
  require(selector.local > kLeastChunk,
          fmt::format("local = {}: a chunk tree keeps so many new tokens in its buffer until the oldest {} or "
                      "more leave as a chunk; give {} or more",
                      selector.local, kLeastChunk, kLeastChunk + 1));
  require(options.chunks_per_cluster >= 1,
          fmt::format("chunks_per_cluster = {}; give 1 or more", options.chunks_per_cluster));
}

void check_clusters(const plan::IndexOptions& options) {
  require(options.tokens_per_cluster >= 1,
          fmt::format("tokens_per_cluster = {}; give 1 or more", options.tokens_per_cluster));
  require(options.new_tokens >= options.tokens_per_cluster,
          fmt::format("new_tokens = {} make no cluster of {} tokens; give {} or more", options.new_tokens,
                      options.tokens_per_cluster, options.tokens_per_cluster));
}

void check_landmarks(const plan::IndexOptions& options) {
  require(options.outlier_chunks >= 0, fmt::format("outlier_chunks = {}; give 0 or more", options.outlier_chunks));
}

}  // namespace

std::unique_ptr<KeyIndex> make_index(const plan::Selector& selector, int head_dim, const HeadGates& gates) {
  const auto indexed = std::count_if(selector.terms.begin(), selector.terms.end(),
                                     [](const plan::Term& term) { return plan::is_index(term.source); });
  require(selector.terms.size() == 1 && indexed == 1,
          fmt::format("{} terms, {} of them with an index; a selector with an index has that one term",
                      selector.terms.size(), indexed));
  require(selector.local_share == 0, "a local window as a share of the budget; give it in tokens (local)");
  check(head_dim > 0 && head_dim % 8 == 0 && head_dim <= 256, "head dimensions come in eights, 256 at most");
  const plan::IndexOptions& options = selector.terms.front().index;
  require(options.deviation_weight >= 0,
          fmt::format("deviation_weight = {}; give 0 or more", options.deviation_weight));
  switch (selector.terms.front().source) {
    case plan::Source::page_bounds:
      return std::make_unique<PageBounds>(selector, head_dim);
    case plan::Source::chunk_tree:
      check_tree(selector);
      if (options.chunk_bounds) return std::make_unique<ChunkBounds>(selector, head_dim);
      return std::make_unique<ChunkTree>(selector, head_dim);
    case plan::Source::token_clusters:
      check_clusters(options);
      return std::make_unique<TokenClusters>(selector, head_dim);
    case plan::Source::gate:
      require(gates.gates != nullptr, "a gate without its weights; load the file that the plan names");
      check(gates.gates->weights().head_dim == head_dim, "a gate takes rows of the model's heads");
      return std::make_unique<GateIndex>(selector, gates);
    default:
      check_landmarks(options);
      return std::make_unique<Landmarks>(selector, head_dim);
  }
}

bool same_content(const plan::Selector& a, const plan::Selector& b, std::int64_t prompt_tokens, std::int64_t tokens) {
  plan::Selector with_budget = b;
  with_budget.budget = a.budget;
  if (!(a == with_budget)) return false;
  if (a.terms.front().source != plan::Source::chunk_tree) return true;
  // What is generated waits in a buffer that the budget bounds, and a tree is built once the budget covers less.
  const auto covers = [&](const plan::Budget& budget) { return plan::budget_tokens(budget, tokens) >= tokens; };
  return tokens == prompt_tokens && covers(a.budget) == covers(b.budget);
}

}  // namespace glimpse::kv
