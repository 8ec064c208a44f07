#include "glimpse/kernels/cpu/operations.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "glimpse/base/error.h"
#include "glimpse/base/size.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/choose.h"
#include "glimpse/kernels/cpu/page_bounds.h"
#include "glimpse/kernels/cpu/row_outputs.h"
#include "glimpse/kernels/cpu/run_split.h"

namespace glimpse::kernels {
namespace {

struct ThreadSpace {
  SelectSpace selection;
  std::vector<std::byte> prefill;
  std::vector<float> digests, lse;
};

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
    work_.clear();
    add_scored(op, work_, [](const Output& output, int) { return output; });
    work_.seal(0);
    const Reading reading{op.cache.format, op.q.raw(), op.scale, op.out.scores.raw(), op.out.stride};
    drain([&](const Split& split, const Split* next, int thread) {
      score_split(reading, work_, split, next, nullptr);
      const Output& output = work_.output(split);
      if (work_.finish(split)) work_.sum(output, spaces_[size(thread)].lse, op.out.lse.raw() + output.query);
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
    share(op.count, [&](int i, int thread) { select_set(op, op.choices[size(i)], spaces_[size(thread)].selection); });
  }

  void attend(const AttendOp<Place::host>& op) override {
    work_.clear();
    for (int row = 0; row < op.rows.rows; ++row) {
      add_attended(op, row, work_, [&](Output output, int) {
        output.first_score = output.query * op.scores.stride;
        check(!output.keeps_scores || size(output.entries) <= op.scores.stride,
              "a row of scores has room for all slots");
        return output;
      });
    }
    work_.seal(op.cache.format.dim);
    const Reading reading{op.cache.format, op.q.raw(), op.scale, op.scores.scores.raw(), op.scores.stride};
    drain([&](const Split& split, const Split* next, int thread) {
      attend_split(reading, work_, split, next);
      if (!work_.finish(split)) return;
      const Output& output = work_.output(split);
      const std::size_t at = output.query * size(op.cache.format.dim);
      work_.merge(output, op.out.raw() + at);
      for (std::size_t i = 0; op.narrow && i < size(output.queries) * size(op.cache.format.dim); ++i) {
        op.narrow.raw()[at + i] = bf16_from_float(op.out.raw()[at + i]);
      }
      std::vector<float>& space = spaces_[size(thread)].lse;
      if (op.lse) work_.sum(output, space, op.lse.raw() + output.query);
      if (output.keeps_scores) work_.sum(output, space, op.scores.lse.raw() + output.query);
    });
  }

  void prefill(const PrefillOp<Place::host>& op) override {
    for (int i = 0; i < op.count; ++i) {
      PrefillOp<Place::host> one = op;
      one.prompt = op.pieces[size(i)];
      one.count = 0;
      prefill(one);
    }
    if (op.count > 0) return;
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

  /// run(split, next, thread) for all splits of the work list.
  template <class Run>
  void drain(const Run& run) {
    const int threads = workers_ == nullptr || work_.splits() < 2 ? 1 : workers_->threads();
    const auto work = [&](int thread) {
      work_.drain(threads, [&](const Split& split, const Split* next) { run(split, next, thread); });
    };
    threads == 1 ? work(0) : workers_->run(work);
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

  Workers* workers_;
  std::vector<ThreadSpace> spaces_;
  WorkList<> work_;
};

}  // namespace

std::unique_ptr<Operations<Place::host>> make_cpu_operations(Workers* workers) {
  return std::make_unique<CpuOperations>(workers);
}

}  // namespace glimpse::kernels
