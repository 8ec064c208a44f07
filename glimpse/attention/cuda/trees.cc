#include "glimpse/attention/cuda/trees.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "glimpse/attention/cuda/flat_tree.h"
#include "glimpse/attention/cuda/set_source.h"
#include "glimpse/attention/give_slots.h"
#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kv/index/key_index.h"

namespace glimpse::attention::cuda {
namespace {

/// Null: the index is clusters of tokens.
kv::ChunkTree* chunk_tree(const IndexItem& item) {
  return dynamic_cast<kv::ChunkTree*>(item.index);
}

/// What an extension to `tokens` reads: the chunks that it cuts, or all of them where it builds the tree.
KeySpan wanted(const SequenceRows& rows, const IndexItem& item, std::int64_t prompt, std::int64_t tokens) {
  if (tokens < prompt) return {};
  const plan::Selector& selector = selector_of(rows, item.layer, item.head);
  const kv::ChunkTree* const tree = chunk_tree(item);
  if (tree == nullptr) {
    const std::int64_t covered = item.index->covered();
    const std::int64_t more = selector.terms.front().index.new_tokens;
    std::int64_t last = std::max(covered, prompt);
    if (tokens - last > more) last += (tokens - last - 1) / more * more;
    return last > covered ? KeySpan{covered, last} : KeySpan{};
  }
  if (!tree->is_built() && plan::budget_tokens(selector.budget, tokens) >= tokens) return {};
  return {tree->is_built() ? tree->chunks().covered() : 0,
          tree->chunks().covered_after(rows.state->boundaries, prompt, tokens)};
}

/// The most tokens up to which an index that covers what it can takes none in; 0: not known.
std::int64_t idle_until(const SequenceRows& rows, const IndexItem& item) {
  if (item.index->covered() < rows.state->prompt_tokens) return 0;
  const kv::ChunkTree* const tree = chunk_tree(item);
  if (tree != nullptr) return tree->is_built() ? tree->chunks().idle_until() : 0;
  return item.index->covered() + selector_of(rows, item.layer, item.head).terms.front().index.new_tokens;
}

void write(IndexItem& item, const void* to, std::int32_t value) {
  item.writes.push_back({static_cast<std::uint32_t*>(const_cast<void*>(to)), static_cast<std::uint32_t>(value)});
}

/// The centroids, radii and sizes of clusters that changed, and of the branches that hold them.
void send_clusters(std::int64_t sink, const TreeCopy& copy, IndexItem& item, std::vector<std::int32_t> clusters) {
  const kv::ChunkTree& tree = *chunk_tree(item);
  const auto unique = [](std::vector<std::int32_t>& values) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
  };
  const auto dim = size(tree.fine().dim());
  const auto send_node = [&](const kv::NodeLevel& level, std::int32_t node, std::int32_t place) {
    const std::uint16_t* const from = level.rows().data() + size(node) * dim;
    const std::uint16_t* const to = copy.tree.centroids + size(place) * dim;
    for (std::size_t i = 0; i < dim; i += 2) {
      std::int32_t word = 0;
      std::memcpy(&word, from + i, sizeof word);
      write(item, to + i, word);
    }
    std::int32_t radius = 0;
    std::memcpy(&radius, level.radii().data() + node, sizeof radius);
    write(item, copy.tree.radii + place, radius);
  };
  unique(clusters);
  std::vector<std::int32_t> branches;
  for (const std::int32_t cluster : clusters) {
    send_node(tree.fine(), cluster, copy.tree.branches + cluster);
    write(item, copy.tree.costs + cluster, cost_of(tree, cluster, sink));
    branches.push_back(tree.branch_of(cluster));
  }
  unique(branches);
  for (const std::int32_t branch : branches) {
    send_node(tree.coarse(), branch, branch);
    write(item, copy.tree.branch_tokens + branch, tree.branch_tokens(branch));
  }
}

/// Chunks up to `chunks` that a copy has not, and what they changed.
void send_nodes(std::int64_t sink, const TreeCopy& copy, IndexItem& item, std::int32_t chunks) {
  const kv::ChunkTree& tree = *chunk_tree(item);
  std::vector<std::int32_t> clusters = tree.clusters_of_chunks(copy.tree.chunks);
  for (std::int32_t chunk = copy.tree.chunks; chunk < chunks; ++chunk) {
    write(item, copy.tree.cluster_of + chunk, clusters[size(chunk - copy.tree.chunks)]);
    write(item, copy.tree.ends + chunk, static_cast<std::int32_t>(tree.chunks().end(chunk)));
  }
  send_clusters(sink, copy, item, std::move(clusters));
}

}  // namespace

kv::KeyIndex* tree_of(const SequenceRows& rows, int layer, int head) {
  return index_of(rows, layer, head, searches_tree);
}

void Trees::begin() {
  copies_.begin();
  most_ = 0;
}

void Trees::extend(const SequenceRows& rows, std::span<Item> items, std::int64_t prompt, std::int64_t tokens) {
  seconds_ = clusters_.build(rows, items, prompt, tokens);
  KeySpan all;
  const Item* before = nullptr;
  for (const Item& item : items) {
    // Trees of one selector that cover as much read as much.
    const kv::ChunkTree* const tree = chunk_tree(item);
    const kv::ChunkTree* const last = before == nullptr ? nullptr : chunk_tree(*before);
    const bool same = before != nullptr &&
                      &selector_of(rows, before->layer, before->head) == &selector_of(rows, item.layer, item.head) &&
                      before->index->covered() == item.index->covered() &&
                      (tree == nullptr ||
                       (last->is_built() == tree->is_built() && last->chunks().covered() == tree->chunks().covered()));
    before = &item;
    if (!same) all = all.with(wanted(rows, item, prompt, tokens));
  }
  seconds_ += builder_.grow(rows, items, all, prompt,
                            [tokens](Item& item, const kv::KeySource& source) { item.index->extend(source, tokens); });
}

const SearchedTrees* Trees::searched(const SequenceRows& rows) const {
  const auto found = settled_.find(rows.sequence);
  return found == settled_.end() ? nullptr : &found->second.searched[found->second.last];
}

bool Trees::is_settled(const SequenceRows& rows, std::int64_t tokens) const {
  const auto found = settled_.find(rows.sequence);
  if (found == settled_.end() || copies_.is_other(rows)) return false;
  const Settled& settled = found->second;
  return tokens <= settled.idle_until && settled.serial == cache_.serial(rows.sequence) &&
         settled.state == rows.state && settled.prompt == rows.state->prompt_tokens &&
         settled.index == rows.state->indices[settled.head].get();
}

void Trees::settle(const SequenceRows& rows, std::span<const Item> items) {
  Settled& settled = settled_[rows.sequence];
  settled.serial = cache_.serial(rows.sequence);
  settled.state = rows.state;
  settled.prompt = rows.state->prompt_tokens;
  settled.head = rows.state->head(items.front().layer, items.front().head);
  settled.index = items.front().index;
  settled.idle_until = std::numeric_limits<std::int64_t>::max();
  settled.last = 1 - settled.last;
  SearchedTrees& searched = settled.searched[settled.last];
  searched.copies = copies_.copies(rows);
  searched.covered.assign(rows.state->indices.size(), 0);
  settled.most = 0;
  for (const Item& item : items) {
    const std::int64_t covered = item.index->covered();
    searched.covered[rows.state->head(item.layer, item.head)] = static_cast<std::int32_t>(covered);
    settled.idle_until = std::min(settled.idle_until, idle_until(rows, item));
    constexpr int kStep = 1024;
    settled.most = std::max(settled.most, (shape_of(*item.index).clusters + kStep - 1) / kStep * kStep);
  }
}

void Trees::follow(const SequenceRows& rows) {
  if (!rows.decodes() || reads_everything(rows)) return;
  const std::int64_t tokens = rows.kind == PassKind::draft ? rows.committed : rows.position + rows.rows;
  if (is_settled(rows, tokens)) {
    most_ = std::max(most_, settled_[rows.sequence].most);
    copies_.follow(rows);
    return;
  }
  std::vector<Item> items = items_of(rows, searches_tree);
  if (items.empty()) return;
  const bool first = items.front().index->covered() == 0;  // built late; what a later step adds is that step's work
  extend(rows, items, rows.state->prompt_tokens, tokens);
  Known& known = copies_.of(rows);
  if (first) known.build_s += seconds_;  // a pass that runs may have some of its own
  const auto copy_of = [&](const Item& item) -> Copy& { return known.copies[rows.state->head(item.layer, item.head)]; };
  bool whole = copies_.is_other(rows);
  for (std::size_t i = 0; i < items.size() && !whole; ++i) {
    const Copy& copy = copy_of(items[i]);
    const FlatShape shape = shape_of(*items[i].index);
    whole = shape.clusters != copy.tree.clusters || size(shape.chunks) > copy.room;
  }
  if (whole) {
    send_all(rows, items);
  } else {
    for (Item& item : items) {
      Copy& copy = copy_of(item);
      const std::int32_t chunks = shape_of(*item.index).chunks;
      if (chunks > copy.tree.chunks) send_nodes(selector_of(rows, item.layer, item.head).sink, copy, item, chunks);
      copy.tree.chunks = chunks;
      known.writes.insert(known.writes.end(), item.writes.begin(), item.writes.end());
    }
  }
  settle(rows, items);
  most_ = std::max(most_, settled_[rows.sequence].most);
  copies_.follow(rows);
}

void Trees::send_all(const SequenceRows& rows, std::span<const Item> items) {
  std::vector<FlatTree> trees(items.size());
  builder_.share(items.size(), [&](std::size_t i) {
    trees[i] = flatten(*items[i].index, selector_of(rows, items[i].layer, items[i].head).sink);
  });
  std::size_t bytes = 0;
  for (const FlatTree& tree : trees) bytes += tree.bytes().size();
  Known& known = copies_.renew(rows, bytes, "trees");
  std::size_t at = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const FlatTree& tree = trees[i];
    known.memory.copy_in(at, tree.bytes());
    const auto place = [&](std::size_t word) { return known.memory.raw() + at + word * sizeof(std::uint32_t); };
    const auto numbers = [&](std::size_t word) { return reinterpret_cast<const std::int32_t*>(place(word)); };
    Copy& copy = known.copies[rows.state->head(items[i].layer, items[i].head)];
    const FlatShape shape = shape_of(*items[i].index);
    copy.room = tree.room;
    copy.tree = {.centroids = reinterpret_cast<const std::uint16_t*>(place(tree.centroids)),
                 .radii = reinterpret_cast<const float*>(place(tree.radii)),
                 .last_cluster = numbers(tree.last_cluster),
                 .branch_tokens = numbers(tree.branch_tokens),
                 .costs = numbers(tree.costs),
                 .cluster_of = numbers(tree.cluster_of),
                 .ends = chunk_tree(items[i]) == nullptr ? nullptr : numbers(tree.ends),
                 .branches = shape.branches,
                 .clusters = shape.clusters,
                 .chunks = shape.chunks};
    at += tree.bytes().size();
  }
  copies_.hold(rows);
}

/// Chunks from the copy's last up to `chunks`, and the clusters and branches that they are in.
double Trees::end(const SequenceRows& rows) {
  if (rows.decodes()) return copies_.take_seconds(rows);
  seconds_ = 0;
  if (rows.kind == PassKind::correct) mend(rows);
  if (ends_prompt(rows)) build(rows);
  return seconds_;
}

void Trees::build(const SequenceRows& rows) {
  std::vector<Item> items = items_of(rows, searches_tree);
  if (items.empty()) return;
  for (Item& item : items) {  // what it holds took less of the text for prompt
    auto& index = rows.state->indices[rows.state->head(item.layer, item.head)];
    index = kv::make_index(selector_of(rows, item.layer, item.head), cache_.shape().format.dim);
    item.index = index.get();
  }
  copies_.forget(rows);
  const std::int64_t tokens = rows.position + rows.rows;
  extend(rows, items, tokens, tokens);
}

void Trees::mend(const SequenceRows& rows) {
  const std::int64_t first = rows.position, last = rows.position + rows.rows;
  std::vector<Item> items = items_of(rows, searches_tree);
  std::erase_if(items, [&](const Item& item) { return item.index->covered() <= first; });
  if (items.empty()) return;
  KeySpan span{first, 0};
  for (const Item& item : items) {
    const kv::ChunkTree* const tree = chunk_tree(item);
    if (tree == nullptr) {  // a corrected token's cluster may have any others
      span = {0, std::max(span.last, item.index->covered())};
      continue;
    }
    const kv::ChunkList& chunks = tree->chunks();
    span.first = std::min(span.first, chunks.begin(chunks.chunk_of(first)));
    span.last = std::max(span.last, chunks.end(chunks.chunk_of(std::min(last, chunks.covered()) - 1)));
  }
  seconds_ += builder_.grow(rows, items, span, rows.state->prompt_tokens,
                            [&](Item& item, const kv::KeySource& source) { item.index->refresh(source, first, last); });
  copies_.forget(rows);
}

}  // namespace glimpse::attention::cuda
