#include "bench/prefill_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <random>

#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::bench {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): the whole file is about them

constexpr int kSparseTile = 128;      ///< query vectors of a tile that has one list (Kascade)
constexpr int kLeastListed = 128;     ///< keys of a list, at least
constexpr double kListedShare = 0.1;  ///< of the keys before the tile

int tile_rows(const evaluate::KernelShape& shape, PrefillPass pass) {
  return pass == PrefillPass::dense ? prefill_tile_rows(shape.group) : kSparseTile / shape.group;
}

/// The tiles of all heads and their buffers. Tile i is tile i / heads of head i % heads.
class Tiles {
 public:
  Tiles(const evaluate::SharedCache& cache, const PrefillRows& rows)
      : cache_(cache), rows_(rows), tile_(tile_rows(cache->shape, rows.pass)) {
    const evaluate::KernelShape& shape = cache->shape;
    stride_ = static_cast<std::size_t>(shape.heads * shape.group * shape.format.dim);
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    query_.resize(static_cast<std::size_t>(rows.rows) * stride_);
    for (float& x : query_) x = normal(random);
    out_.resize(query_.size());
    lse_.resize(static_cast<std::size_t>(count() * tile_ * shape.group));
    if (rows.pass == PrefillPass::columns)
      sums_.resize(static_cast<std::size_t>(count()) * static_cast<std::size_t>(rows.end));
    if (rows.pass != PrefillPass::sparse) return;
    std::vector<std::int32_t> all(static_cast<std::size_t>(rows.end));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    lists_.resize(static_cast<std::size_t>(count()));
    for (int i = 0; i < count(); ++i) {
      const std::int32_t start = first_slot(i);
      const int listed = std::max(kLeastListed, static_cast<int>(kListedShare * start));
      std::sample(all.begin(), all.begin() + start, std::back_inserter(lists_[static_cast<std::size_t>(i)]), listed,
                  random);
    }
  }

  int count() const { return (rows_.rows + tile_ - 1) / tile_ * cache_->shape.heads; }

  PrefillItem item(int i) {
    const evaluate::KernelShape& shape = cache_->shape;
    const int head = i % shape.heads;
    const int row = i / shape.heads * tile_;
    const std::size_t offset =
        static_cast<std::size_t>(row) * stride_ + static_cast<std::size_t>(head * shape.group * shape.format.dim);
    PrefillItem item{.head = &cache_->views[static_cast<std::size_t>(head)],
                     .query = query_.data() + offset,
                     .query_stride = stride_,
                     .out = out_.data() + offset,
                     .out_stride = stride_,
                     .group = shape.group,
                     .scale = cache_->scale(),
                     .first_slot = first_slot(i),
                     .rows = std::min(tile_, rows_.rows - row)};
    if (rows_.pass == PrefillPass::lse || rows_.pass == PrefillPass::columns) {
      item.lse = lse_.data() + static_cast<std::size_t>(i * tile_ * shape.group);
    }
    if (rows_.pass == PrefillPass::sparse) {
      const std::vector<std::int32_t>& list = lists_[static_cast<std::size_t>(i)];
      item.own_begin = item.first_slot;
      item.list = list.data();
      item.list_count = static_cast<std::int32_t>(list.size());
    }
    return item;
  }
  ColumnSumsItem columns(int i) {
    return {.tile = item(i),
            .end = first_slot(i),
            .sums = sums_.data() + static_cast<std::size_t>(i) * static_cast<std::size_t>(rows_.end)};
  }

  void run(int i) {
    const KvFormat& format = cache_->shape.format;
    const std::span<std::byte> workspace = prefill_space(cache_->shape);
    if (rows_.pass == PrefillPass::lse) {
      prefill_lse(format, item(i), workspace);
    } else if (rows_.pass == PrefillPass::columns) {
      prefill_column_sums(format, columns(i), workspace);
    } else {
      prefill(format, item(i), workspace);
    }
  }

  /// Pairs of a query and a key that it sees, and how many products a pair takes.
  double flops() {
    double pairs = 0;
    for (int i = 0; i < count(); ++i) {
      const PrefillItem tile = item(i);
      const double before = rows_.pass == PrefillPass::sparse ? tile.list_count : tile.first_slot;
      const double own = rows_.pass == PrefillPass::columns ? 0 : 0.5 * (tile.rows + 1);
      pairs += tile.rows * (before + own);
    }
    const bool values = rows_.pass == PrefillPass::dense || rows_.pass == PrefillPass::sparse;
    return (values ? 4.0 : 2.0) * pairs * cache_->shape.group * cache_->shape.format.dim;
  }

  double check(const std::string& name) {
    const evaluate::KernelShape& shape = cache_->shape;
    const auto width = static_cast<std::size_t>(shape.group * shape.format.dim);
    const double allowed = prefill_allowed(shape.format.type);
    PrefillItem tile = item(1);
    if (rows_.pass == PrefillPass::columns) {
      // Shares of all keys but the tile's own, by log-sums that the reference makes for one row.
      tile.rows = 1;
      ref::prefill_lse(shape.format, tile);
      ColumnSumsItem got = columns(1);
      got.tile = tile;
      const auto keys = static_cast<std::size_t>(got.end);
      ColumnSumsItem want = got;
      std::vector<float> got_sums(keys);
      std::vector<float> want_sums(keys);
      got.sums = got_sums.data();
      want.sums = want_sums.data();
      const std::span<std::byte> workspace = prefill_space(shape);
      prefill_column_sums(shape.format, got, workspace);
      ref::prefill_column_sums(shape.format, want);
      for (int i = 0; i < count(); ++i) prefill_lse(shape.format, item(i), workspace);
      return evaluate::expect_near(got_sums, want_sums, allowed, name);
    }
    run(1);
    tile.rows = 1;
    std::vector<float> want(width);
    const bool lse = rows_.pass == PrefillPass::lse;
    (lse ? tile.lse : tile.out) = want.data();
    if (lse) {
      ref::prefill_lse(shape.format, tile);
      return evaluate::expect_near({item(1).lse, static_cast<std::size_t>(shape.group)},
                                   std::span(want).first(static_cast<std::size_t>(shape.group)), allowed, name);
    }
    ref::prefill(shape.format, tile);
    return evaluate::expect_near({item(1).out, width}, want, allowed, name);
  }

 private:
  std::int32_t first_slot(int i) const { return rows_.end - rows_.rows + i / cache_->shape.heads * tile_; }

  evaluate::SharedCache cache_;
  PrefillRows rows_;
  int tile_;
  std::size_t stride_ = 0;
  std::vector<float> query_, out_, lse_;
  std::vector<float> sums_;  ///< [tile, end]
  std::vector<std::vector<std::int32_t>> lists_;
};

}  // namespace

double prefill_allowed(KvType type) {
  return type == KvType::bf16 && std::string(instruction_set()).ends_with("bf16") ? 2e-2 : 2e-5;
}

std::span<std::byte> prefill_space(const evaluate::KernelShape& shape) {
  thread_local HostBuffer buffer;
  const std::size_t need = prefill_workspace(shape.format, shape.group);
  if (buffer.size() < need) buffer = HostBuffer(need);
  return {buffer.data(), buffer.size()};
}

std::vector<PrefillRows> prefill_rows(const evaluate::KernelShape& shape, int tokens) {
  const int end = std::min(tokens, 8192);
  std::vector<PrefillRows> rows{{PrefillPass::dense, end, std::min(end, 512)}};
  if (shape.format.type != KvType::bf16) return rows;
  constexpr int kFar = 30000;
  const auto add = [&](int last) {
    for (const PrefillPass pass : {PrefillPass::sparse, PrefillPass::lse, PrefillPass::columns}) {
      rows.push_back({pass, last, 512});
    }
  };
  if (end == 8192) add(end);
  if (tokens >= kFar) {
    rows.push_back({PrefillPass::dense, kFar, 512});
    add(kFar);
  }
  return rows;
}

std::string prefill_name(const evaluate::KernelShape& shape, const PrefillRows& rows) {
  const char* what = rows.pass == PrefillPass::dense    ? "prefill"
                     : rows.pass == PrefillPass::sparse ? "sparse prefill, 10 %,"
                     : rows.pass == PrefillPass::lse    ? "prefill log-sums"
                                                        : "prefill column sums";
  return evaluate::kernel_label(fmt::format("{} {} rows at {}", what, rows.rows, rows.end - rows.rows), shape);
}

evaluate::KernelCase prefill_case(const evaluate::SharedCache& cache, const PrefillRows& rows) {
  const auto tiles = std::make_shared<Tiles>(cache, rows);
  evaluate::KernelCase result;
  result.name = prefill_name(cache->shape, rows);
  result.items = tiles->count();
  result.flops = tiles->flops();
  result.run = [=](int i) { tiles->run(i); };
  result.check = [=, name = result.name] { return tiles->check(name); };
  return result;
}

}  // namespace glimpse::bench
