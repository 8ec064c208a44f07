#include "glimpse/kernels/cpu/operations.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/choose.h"
#include "glimpse/kernels/cpu/page_bounds.h"

namespace glimpse::kernels {
namespace {

using Cache = KvTable<Place::host>;
using Rows = RowTable<Place::host>;

/// The query heads of one (row, KV head) that share a read.
struct Output {
  RowHead at;
  std::int32_t first_query = 0, queries = 1;  ///< of the group
  const std::int32_t* list = nullptr;
  std::size_t first_partial = 0;  ///< floats
  int partials = 0;
};

/// Part `partial` of an output: slots, or entries of its list.
struct Part {
  int output = 0;
  std::int32_t begin = 0, end = 0;
  int partial = 0;
};

struct ThreadSpace {
  std::vector<float> pooled, one, units;
  std::vector<std::int32_t> chosen, list;
  std::vector<std::byte> workspace, prefill;
  std::vector<float> digests, lse;

  void reserve(std::size_t slots) {
    if (pooled.size() >= slots) return;
    pooled.resize(slots);
    one.resize(slots);
    units.resize(slots);
    chosen.resize(slots);
    list.resize(slots);
    workspace.resize(select_workspace(slots));
  }
};

std::size_t size(std::int64_t value) {
  return static_cast<std::size_t>(value);
}

const HeadView& view_of(const Cache& cache, const Rows& rows, RowHead at) {
  return cache.views[size(rows.sequence[size(at.row)]) * size(cache.kv_heads) + size(at.head)];
}

std::int32_t seen(const Cache& cache, const Rows& rows, RowHead at) {
  return view_of(cache, rows, at).slots - rows.behind[size(at.row)] + 1;
}

/// The number of a KV head's first query head in [R, H].
std::size_t first_query(const Cache& cache, int group, RowHead at) {
  return (size(at.row) * size(cache.kv_heads) + size(at.head)) * size(group);
}

class CpuOperations final : public Operations<Place::host> {
 public:
  explicit CpuOperations(Workers* workers)
      : workers_(workers), spaces_(size(workers == nullptr ? 1 : workers->threads())) {}

  void append(const AppendOp<Place::host>& op) override {
    const std::size_t dim = size(op.cache.format.dim);
    share(op.rows.rows * op.cache.kv_heads, [&](int i, int) {
      const RowHead at{i / op.cache.kv_heads, i % op.cache.kv_heads};
      kernels::append(op.cache.format, {.head = &view_of(op.cache, op.rows, at),
                                        .k = op.k.raw() + size(i) * dim,
                                        .v = op.v.raw() + size(i) * dim,
                                        .row_stride = dim,
                                        .slot = seen(op.cache, op.rows, at) - 1,
                                        .rows = 1});
    });
  }

  void score(const ScoreOp<Place::host>& op) override {
    parts_.clear();
    for (int i = 0; i < op.count; ++i) {
      const std::int32_t slots = seen(op.cache, op.rows, op.heads[size(i)]);
      check(size(slots) <= op.out.stride, "a row of scores has room for all slots");
      for (std::int32_t begin = 0; begin < slots; begin += kSplitTokens) {
        parts_.push_back({i, begin, std::min(slots, begin + kSplitTokens), 0});
      }
    }
    const std::size_t dim = size(op.cache.format.dim);
    share(static_cast<int>(parts_.size()), [&](int i, int) {
      const Part& part = parts_[size(i)];
      const RowHead at = op.heads[size(part.output)];
      const std::size_t query = first_query(op.cache, op.group, at);
      kernels::score(op.cache.format, {.head = &view_of(op.cache, op.rows, at),
                                       .query = op.q.raw() + query * dim,
                                       .group = op.group,
                                       .scale = op.scale,
                                       .begin = part.begin,
                                       .end = part.end,
                                       .scores = op.out.scores.raw() + query * op.out.stride,
                                       .score_stride = op.out.stride});
    });
    share(op.count * op.group, [&](int i, int) {
      const RowHead at = op.heads[size(i / op.group)];
      const std::size_t query = first_query(op.cache, op.group, at) + size(i % op.group);
      op.out.lse[query] = log_sum_exp({op.out.scores.raw() + query * op.out.stride, size(seen(op.cache, op.rows, at))});
    });
  }

  void summarise(const SummariseOp<Place::host>& op) override {
    share(op.count, [&](int i, int) { summarise_pages(op, op.ranges[size(i)]); });
  }

  void search(const SearchOp<Place::host>& op) override {
    for (int i = 0; i < op.count; ++i) {
      check(size(op.searches[size(i)].last) <= op.out.stride, "a row of scores has room for all blocks");
    }
    share(op.count, [&](int i, int thread) { search_blocks(op, op.searches[size(i)], spaces_[size(thread)].digests); });
  }

  void select(const SelectOp<Place::host>& op) override {
    share(op.count, [&](int i, int thread) { select_set(op, op.choices[size(i)], spaces_[size(thread)]); });
  }

  void attend(const AttendOp<Place::host>& op) override {
    plan_attend(op);
    const std::size_t dim = size(op.cache.format.dim);
    share(static_cast<int>(parts_.size()), [&](int i, int) {
      const Part& part = parts_[size(i)];
      const Output& output = outputs_[size(part.output)];
      const std::size_t query = first_query(op.cache, op.group, output.at) + size(output.first_query);
      kernels::attend(op.cache.format,
                      {.head = &view_of(op.cache, op.rows, output.at),
                       .query = op.q.raw() + query * dim,
                       .group = output.queries,
                       .scale = op.scale,
                       .begin = part.begin,
                       .end = part.end,
                       .list = output.list,
                       .partial = partials_.data() + output.first_partial +
                                  size(part.partial) * partial_floats(output.queries, op.cache.format.dim)});
    });
    share(static_cast<int>(outputs_.size()), [&](int i, int) { finish(op, outputs_[size(i)]); });
  }

  void prefill(const PrefillOp<Place::host>& op) override {
    const PromptRows& prompt = op.prompt;
    const int tile = prefill_tile_rows(op.group);
    const int tiles = (prompt.rows + tile - 1) / tile;
    const std::size_t stride = size(op.cache.kv_heads) * size(op.group) * size(op.cache.format.dim);
    const std::size_t bytes = prefill_workspace(op.cache.format, op.group);
    for (ThreadSpace& space : spaces_) {
      if (space.prefill.size() < bytes) space.prefill.resize(bytes);
    }
    // Late tiles see most: they come first.
    share(tiles * op.cache.kv_heads, [&](int i, int thread) {
      const std::int32_t first = (tiles - 1 - i / op.cache.kv_heads) * tile;
      const int head = i % op.cache.kv_heads;
      const HeadView& view = op.cache.views[size(prompt.sequence) * size(op.cache.kv_heads) + size(head)];
      const std::size_t at =
          size(prompt.row + first) * stride + size(head) * size(op.group) * size(op.cache.format.dim);
      kernels::prefill(op.cache.format,
                       {.head = &view,
                        .query = op.q.raw() + at,
                        .query_stride = stride,
                        .out = op.out.raw() + at,
                        .out_stride = stride,
                        .group = op.group,
                        .scale = op.scale,
                        .first_slot = view.slots - prompt.behind + first,
                        .rows = std::min(tile, prompt.rows - first),
                        .lse = op.lse ? lse_of(tile * op.group, thread) : nullptr},
                       spaces_[size(thread)].prefill);
      if (!op.lse) return;
      const int rows = std::min(tile, prompt.rows - first);
      for (int row = 0; row < rows; ++row) {  // [rows, g] to [R, H]
        std::copy_n(lse_of(0, thread) + size(row) * size(op.group), op.group,
                    op.lse.raw() + first_query(op.cache, op.group, {prompt.row + first + row, head}));
      }
    });
  }

  void column_sums(const ColumnSumsOp<Place::host>& op) override {
    const std::size_t bytes = prefill_workspace(op.cache.format, op.group);
    for (ThreadSpace& space : spaces_) {
      if (space.prefill.size() < bytes) space.prefill.resize(bytes);
    }
    share(op.count * op.cache.kv_heads,
          [&](int i, int thread) { sum_columns(op, op.pieces[size(i / op.cache.kv_heads)], i, thread); });
  }

 private:
  /// work(i, thread) for all i below count, in order as threads become free.
  template <class Work>
  void share(int count, const Work& work) {
    if (workers_ == nullptr || count < 2) {
      for (int i = 0; i < count; ++i) work(i, 0);
      return;
    }
    std::atomic<int> next{0};
    workers_->run([&](int thread) {
      for (int i = next++; i < count; i = next++) work(i, thread);
    });
  }

  float* lse_of(int count, int thread) {
    std::vector<float>& lse = spaces_[size(thread)].lse;
    if (lse.size() < size(count)) lse.resize(size(count));
    return lse.data();
  }

  /// One KV head of a piece, tile by tile: the order of a sum is that of the rows. `number` of the sums.
  void sum_columns(const ColumnSumsOp<Place::host>& op, const PromptRows& piece, int number, int thread) {
    const int head = number % op.cache.kv_heads;
    const int tile = prefill_tile_rows(op.group);
    const std::size_t dim = size(op.cache.format.dim);
    const HeadView& view = op.cache.views[size(piece.sequence) * size(op.cache.kv_heads) + size(head)];
    ColumnSumsItem item;
    item.end = view.slots - piece.behind + piece.rows;
    item.sums = op.sums.raw() + size(number) * op.stride;
    check(size(item.end) <= op.stride, "a row of sums has room for all slots");
    std::fill_n(item.sums, item.end, 0.0F);
    for (std::int32_t first = 0; first < piece.rows; first += tile) {
      const int rows = std::min(tile, piece.rows - first);
      float* const lse = lse_of(tile * op.group, thread);
      for (int row = 0; row < rows; ++row) {
        const std::size_t from = first_query(op.cache, op.group, {piece.row + first + row, head});
        std::copy_n(op.lse.raw() + from, op.group, lse + size(row) * size(op.group));
      }
      item.tile = {.head = &view,
                   .query = op.q.raw() + first_query(op.cache, op.group, {piece.row + first, head}) * dim,
                   .query_stride = size(op.cache.kv_heads) * size(op.group) * dim,
                   .group = op.group,
                   .scale = op.scale,
                   .first_slot = view.slots - piece.behind + first,
                   .rows = rows,
                   .lse = lse};
      prefill_column_sums(op.cache.format, item, spaces_[size(thread)].prefill);
    }
  }

  /// The outputs and their parts: those that read everything first, by range over all heads, as the cache lies in
  /// memory.
  void plan_attend(const AttendOp<Place::host>& op) {
    outputs_.clear();
    parts_.clear();
    std::int32_t most = 0;
    for (int row = 0; row < op.rows.rows; ++row) {
      for (int head = 0; head < op.cache.kv_heads; ++head) most = std::max(most, add_outputs(op, {row, head}));
    }
    std::vector<Part> ranges;
    for (std::int32_t begin = 0; begin < most; begin += kSplitTokens) {
      for (const Part& whole : whole_) {
        if (begin >= whole.end) continue;
        ranges.push_back({whole.output, begin, std::min(whole.end, begin + kSplitTokens), begin / kSplitTokens});
      }
    }
    whole_.clear();
    parts_.insert(parts_.begin(), ranges.begin(), ranges.end());
    std::size_t floats = 0;
    for (Output& output : outputs_) {
      output.first_partial = floats;
      floats += size(output.partials) * partial_floats(output.queries, op.cache.format.dim);
    }
    if (partials_.size() < floats) partials_.resize(floats + floats / 4);
  }

  /// Outputs of one KV head and the parts of those that read ranges or lists; returns the slots of one that reads all.
  std::int32_t add_outputs(const AttendOp<Place::host>& op, RowHead at) {
    const std::int32_t slots = seen(op.cache, op.rows, at);
    const Read& read = op.reads[size(at.row) * size(op.cache.kv_heads) + size(at.head)];
    const int outputs = read.kind == Read::Kind::sets && read.per_query != 0 ? op.group : 1;
    std::int32_t most = 0;
    for (int i = 0; i < outputs; ++i) {
      const int number = static_cast<int>(outputs_.size());
      outputs_.push_back({.at = at, .first_query = i, .queries = outputs > 1 ? 1 : op.group});
      Output& output = outputs_.back();
      bool everything = read.kind == Read::Kind::everything;
      if (read.kind == Read::Kind::window) {
        if (read.sink + read.local >= slots) {
          everything = true;
        } else {
          add_range(number, 0, read.sink);
          add_range(number, slots - read.local, slots);
        }
      } else if (read.kind == Read::Kind::sets) {
        const std::int32_t count = op.sets.count[size(read.set + i)];
        everything = count == kEverything;
        output.list = op.sets.slots.raw() + size(read.set + i) * size(op.sets.capacity);
        if (!everything) add_range(number, 0, count);
      }
      if (!everything) continue;
      output.list = nullptr;
      output.partials = (slots + kSplitTokens - 1) / kSplitTokens;
      whole_.push_back({number, 0, slots, 0});
      most = slots;
    }
    return most;
  }

  void add_range(int output, std::int32_t begin, std::int32_t end) {
    for (; begin < end; begin += kSplitTokens) {
      parts_.push_back({output, begin, std::min(end, begin + kSplitTokens), outputs_[size(output)].partials++});
    }
  }

  void finish(const AttendOp<Place::host>& op, const Output& output) {
    const int dim = op.cache.format.dim;
    const std::size_t query = first_query(op.cache, op.group, output.at) + size(output.first_query);
    const float* parts = partials_.data() + output.first_partial;
    combine(parts, output.partials, output.queries, dim, op.out.raw() + query * size(dim));
    if (!op.lse) return;
    std::vector<float> sums(size(output.partials));
    for (int j = 0; j < output.queries; ++j) {
      for (int p = 0; p < output.partials; ++p) {
        sums[size(p)] =
            parts[size(p) * partial_floats(output.queries, dim) + size(output.queries) * size(dim) + size(j)];
      }
      op.lse[query + size(j)] = log_sum_exp(sums);
    }
  }

  static void pool(const SelectOp<Place::host>& op, const Choice& choice, std::int32_t head, std::span<float> pooled) {
    const std::size_t query = first_query(op.cache, op.group, {choice.row, head}) + size(std::max(choice.query, 0));
    const float* scores = op.scores.scores.raw() + query * op.scores.stride;
    const float* lse = op.scores.lse.raw() + query;
    const int group = choice.query < 0 ? op.group : 1;
    switch (choice.pooling) {
      case Pooling::mean_probability:
        return pool_mean_probability(scores, op.scores.stride, lse, group, pooled);
      case Pooling::max_probability:
        return pool_max_probability(scores, op.scores.stride, lse, group, pooled);
      case Pooling::mean_score:
        return pool_mean_score(scores, op.scores.stride, group, pooled);
      case Pooling::max_score:
        return pool_max_score(scores, op.scores.stride, group, pooled);
      case Pooling::probability_of_mean: {
        pool_mean_score(scores, op.scores.stride, group, pooled);
        const float sum = log_sum_exp(pooled);
        return pool_mean_probability(pooled.data(), pooled.size(), &sum, 1, pooled);
      }
    }
  }

  static void select_set(const SelectOp<Place::host>& op, const Choice& choice, ThreadSpace& space) {
    const std::size_t slots = size(seen(op.cache, op.rows, {choice.row, choice.head}));
    const std::size_t scored = choice.by_unit != 0 ? (slots + size(choice.block) - 1) / size(choice.block) : slots;
    space.reserve(slots);
    const std::span<float> pooled(space.pooled.data(), scored);
    const std::span<float> one(space.one.data(), scored);
    pool(op, choice, choice.head, pooled);
    const bool largest = takes_largest_head(choice);
    for (std::int32_t head = choice.head + 1; head < choice.head + choice.heads; ++head) {
      pool(op, choice, head, one);
      for (std::size_t i = 0; i < scored; ++i) pooled[i] = largest ? std::max(pooled[i], one[i]) : pooled[i] + one[i];
    }
    if (!largest && choice.heads > 1) {
      const float share = 1.0F / static_cast<float>(choice.heads);
      for (float& value : pooled) value *= share;
    }
    const ChooseSpace room{space.units, space.chosen, space.workspace};
    const std::size_t count = choice.by_unit != 0 ? choose_units(choice, pooled, slots, room, space.list.data())
                                                  : choose(choice, pooled, room, space.list.data());
    const auto set = size(choice.set);
    const std::size_t kept = std::min(count, size(op.sets.capacity));
    op.sets.count[set] = count == slots ? kEverything : static_cast<std::int32_t>(kept);
    if (count == slots) return;
    std::copy_n(space.list.data(), kept, op.sets.slots.raw() + set * size(op.sets.capacity));
  }

  Workers* workers_;
  std::vector<ThreadSpace> spaces_;
  std::vector<Output> outputs_;
  std::vector<Part> parts_, whole_;
  std::vector<float> partials_;
};

}  // namespace

std::unique_ptr<Operations<Place::host>> make_cpu_operations(Workers* workers) {
  return std::make_unique<CpuOperations>(workers);
}

}  // namespace glimpse::kernels
