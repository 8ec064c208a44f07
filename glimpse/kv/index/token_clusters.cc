#include "glimpse/kv/index/token_clusters.h"

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/index/chunk_set.h"
#include "glimpse/kv/index/k_means.h"
#include "glimpse/kv/index/ranking.h"

namespace glimpse::kv {

void TokenClusters::extend(const KeySource& keys, std::int64_t tokens) {
  const plan::IndexOptions& options = selector_.terms.front().index;
  if (tokens < keys.prompt_tokens) return;
  if (const Cut prompt = cut(keys.prompt_tokens, tokens); prompt.last > 0) {
    add(keys, prompt.first, prompt.last, prompt.wanted);
    covered_ = prompt.last;
  }
  // More than new_tokens: the current token is in no cluster.
  while (tokens - covered_ > options.new_tokens) {
    add(keys, covered_, covered_ + options.new_tokens, options.new_tokens / options.tokens_per_cluster);
    covered_ += options.new_tokens;
  }
}

TokenClusters::Cut TokenClusters::cut(std::int64_t prompt, std::int64_t tokens) const {
  if (tokens < prompt || covered_ >= prompt) return {};
  const std::int64_t wanted = prompt / selector_.terms.front().index.tokens_per_cluster;
  return {std::min<std::int64_t>(selector_.sink, prompt), prompt,
          static_cast<std::int32_t>(std::max<std::int64_t>(1, wanted))};
}

void TokenClusters::adopt(const Cut& cut, std::span<const std::int32_t> nearest, std::int32_t count,
                          std::span<const float> means) {
  check(covered_ < cut.last && size(cut.last - cut.first) == nearest.size() && means.size() == size(count) * size(dim_),
        "a prompt's clusters are taken in once, all of them");
  list_members(cut.first, nearest, count);
  content_.own().means.insert(content_.own().means.end(), means.begin(), means.end());
  covered_ = cut.last;
}

void TokenClusters::add(const KeySource& keys, std::int64_t first, std::int64_t last, std::int32_t wanted) {
  const auto count = static_cast<std::int32_t>(last - first);
  if (count == 0) return;
  check(keys.format.dim == dim_, "an index is made for the cache's rows");
  std::vector<float> rows(size(count) * size(dim_));
  kernels::read_keys(keys.format, *keys.head, static_cast<std::int32_t>(first), count, rows.data());
  const Clusters found = spherical_k_means({rows.data(), count, dim_, wanted, Seeding::sampled_plus_plus});

  const std::int32_t old = clusters();
  list_members(first, found.nearest, found.count);
  content_.own().means.resize(content_->ends.size() * size(dim_));
  for (std::int32_t cluster = old; cluster < clusters(); ++cluster) find_mean(keys, cluster);
}

/// Tokens from `first` on, by their clusters.
void TokenClusters::list_members(std::int64_t first, std::span<const std::int32_t> nearest, std::int32_t count) {
  Content& content = content_.own();
  std::vector<std::int32_t> next(size(count), 0);
  for (const std::int32_t cluster : nearest) ++next[size(cluster)];
  auto place = static_cast<std::int32_t>(content.members.size());
  for (std::int32_t& size : next) {
    const std::int32_t begin = place;
    place += size;
    content.ends.push_back(place);
    size = begin;
  }
  content.members.resize(size(place));
  for (std::size_t r = 0; r < nearest.size(); ++r) {
    content.members[size(next[size(nearest[r])]++)] = static_cast<std::int32_t>(first) + static_cast<std::int32_t>(r);
  }
}

void TokenClusters::find_mean(const KeySource& keys, std::int32_t cluster) {
  check(keys.format.dim == dim_, "an index is made for the cache's rows");
  const std::span<const std::int32_t> tokens = tokens_of(cluster);
  std::vector<float> rows(tokens.size() * size(dim_));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    kernels::read_keys(keys.format, *keys.head, tokens[i], 1, rows.data() + i * size(dim_));
  }
  kernels::row_moments({rows.data(), static_cast<std::int32_t>(tokens.size()), dim_},
                       content_.own().means.data() + size(cluster) * size(dim_), nullptr);
}

void TokenClusters::refresh(const KeySource& keys, std::int64_t first, std::int64_t last) {
  for (std::int32_t cluster = 0; cluster < clusters(); ++cluster) {
    const std::span<const std::int32_t> tokens = tokens_of(cluster);
    const auto found = std::lower_bound(tokens.begin(), tokens.end(), first);
    if (found != tokens.end() && *found < last) find_mean(keys, cluster);
  }
}

std::size_t TokenClusters::search(const IndexQuery& query, IndexScratch& scratch,
                                  std::vector<std::int32_t>& set) const {
  check(query.tokens > 0 && query.tokens >= covered_, "a search comes after the tokens of its index");
  const AlwaysIn in = always_in(selector_, query, covered_, selector_.local);
  const auto count = content_->ends.size();
  set.clear();
  add_range(set, 0, in.sink);
  std::size_t read = 0;
  if (in.room > 0 && in.tail > in.sink && count > 0) {
    if (scratch.scores.size() < count) scratch.scores.resize(count);
    if (scratch.order.size() < count) scratch.order.resize(count);
    const GroupQueries queries = group_queries(selector_.terms.front().group, query, dim_, scratch);
    kernels::NodeScoreItem item{.rows = reinterpret_cast<const std::byte*>(content_->means.data()),
                                .type = KvType::f32};
    item.width = dim_;
    item.count = clusters();
    item.queries = queries.data;
    item.group = queries.group;
    item.scale = queries.scale;
    item.pooling = queries.pooling;
    item.scores = scratch.scores.data();
    kernels::score_nodes(item);
    read = content_->means.size() * sizeof(float);

    clear_chosen(scratch, in.tail);
    Ranking ranked({scratch.scores.data(), count}, {scratch.order.data(), count});
    std::int64_t room = in.room;
    while (!ranked.empty() && room > 0) {
      const std::span<const std::int32_t> tokens = tokens_of(ranked.pop());
      for (std::size_t i = 0; i < tokens.size() && room > 0; ++i) {
        if (tokens[i] < in.sink || tokens[i] >= in.tail) continue;
        mark_chosen(scratch, tokens[i]);
        --room;
      }
      read += tokens.size_bytes();
    }
    for_each_chosen(scratch, in.tail, [&](std::int64_t token) { set.push_back(static_cast<std::int32_t>(token)); });
  }
  add_range(set, in.tail, query.tokens);
  return read;
}

std::vector<std::int32_t> TokenClusters::units_of(std::span<const std::int32_t> set, std::int64_t tokens) const {
  IndexQuery query;
  query.tokens = tokens;
  const AlwaysIn in = always_in(selector_, query, covered_, selector_.local);
  const auto chosen = [&](std::int32_t token) {
    return token >= in.sink && token < in.tail && std::binary_search(set.begin(), set.end(), token);
  };
  std::vector<std::int32_t> found;
  for (std::int32_t cluster = 0; cluster < clusters(); ++cluster) {
    const std::span<const std::int32_t> members = tokens_of(cluster);
    if (std::any_of(members.begin(), members.end(), chosen)) found.push_back(cluster);
  }
  return found;
}

std::size_t TokenClusters::bytes() const {
  return content_->means.size() * sizeof(float) +
         (content_->ends.size() + content_->members.size()) * sizeof(std::int32_t);
}

std::span<const std::int32_t> TokenClusters::tokens_of(std::int32_t cluster) const {
  const std::size_t begin = cluster == 0 ? 0 : size(content_->ends[size(cluster) - 1]);
  return std::span(content_->members).subspan(begin, size(content_->ends[size(cluster)]) - begin);
}

std::span<const float> TokenClusters::mean_of(std::int32_t cluster) const {
  return std::span(content_->means).subspan(size(cluster) * size(dim_), size(dim_));
}

}  // namespace glimpse::kv
