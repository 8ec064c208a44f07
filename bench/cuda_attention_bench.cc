// Attention on a GPU: dense, gathered, anchor layers, mixed heads and chunks of prompts, each as launches back to back
// in one graph over different memory, against the speed of plain reads of the same run. Every shape's answers are held
// against the reference first.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda_results.h"
#include "bench/cuda_support.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/cuda/readings.h"
#include "glimpse/kernels/cuda/tiles.h"
#include "glimpse/kernels/ref/operations.h"

namespace glimpse::bench {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): all of it is about them
using cuda::Array;
using cuda::Graph;
using cuda::Memory;
using cuda::Stream;

constexpr int kKvHeads = 8, kGroup = 4, kDim = 128;
constexpr float kScale = 0.08838834764F;

struct Wanted {
  std::vector<int> batches{1, 8, 64}, tokens{8192, 32768, 131072};
  bool shuffled = false;
  bool check = true;
  std::vector<int> prefill;  ///< rows of chunks of a prompt
  double share = 0.1;
  std::string json;  ///< where the results go, or nowhere
  std::string command;
  std::vector<std::string> caches{"bf16"};
  std::vector<std::string> only;  ///< what is measured; empty: everything
};

/// One size of the pool that all shapes are cut from.
class Pool {
 public:
  Pool(Stream& stream, KvFormat of, std::size_t count)
      : format(of), pages(count), k(stream, count * of.page_bytes()), v(stream, count * of.page_bytes()) {
    if (of.type == KvType::q8_0) {
      fill_bytes(k, of, 1);
      fill_bytes(v, of, 2);
    } else {
      fill_normal(stream, k.raw(), pages * kPageTokens * kDim, 1);
      fill_normal(stream, v.raw(), pages * kPageTokens * kDim, 2);
    }
  }
  KvFormat format;
  std::size_t pages;
  Memory k, v;
};

/// A batch of sequences of one length: several layers of it, each in memory of its own.
class Bed {
 public:
  Bed(Stream& stream, const Pool& pool, int sequences, int length, const Wanted& wanted)
      : batch(sequences), tokens(length), stream_(stream), pool_(pool) {
    const std::size_t heads = static_cast<std::size_t>(batch) * kKvHeads;
    const auto each = static_cast<std::size_t>((tokens + kPageTokens - 1) / kPageTokens);
    layers = static_cast<int>(std::min<std::size_t>(pool.pages / (heads * each), 32));
    check(layers > 0, "the pool is too small");
    std::vector<PageId> table(static_cast<std::size_t>(layers) * heads * each);
    std::iota(table.begin(), table.end(), 0U);
    std::mt19937 random(5);
    if (wanted.shuffled) std::shuffle(table.begin(), table.end(), random);
    pages_ = Array<PageId>(stream, table);
    std::vector<HeadView> views;
    for (std::size_t i = 0; i < static_cast<std::size_t>(layers) * heads; ++i) {
      views.push_back({pool.k.raw(), pool.v.raw(), pages_.pointer().raw() + i * each, nullptr, tokens});
    }
    views_ = Array<HeadView>(stream, views);
    std::vector<std::int32_t> sequence(static_cast<std::size_t>(batch)), behind(sequence.size(), 1);
    std::iota(sequence.begin(), sequence.end(), 0);
    sequence_ = Array<std::int32_t>(stream, sequence);
    behind_ = Array<std::int32_t>(stream, behind);
    std::normal_distribution<float> normal;
    queries_.resize(heads * kGroup * kDim);
    for (float& x : queries_) x = normal(random);
    q_ = Array<float>(stream, queries_);
    out_ = Array<float>(stream, queries_.size());
    lse_ = Array<float>(stream, heads * kGroup);
    make_sets(random, static_cast<std::int32_t>(std::lround(tokens * wanted.share)), tokens);
  }

  std::size_t heads() const { return static_cast<std::size_t>(batch) * kKvHeads; }
  KvTable<Place::device> cache(int layer) const {
    return {pool_.format, views_.constant().raw() + static_cast<std::size_t>(layer) * heads(), batch, kKvHeads, 0,
            tokens};
  }
  RowTable<Place::device> rows() const { return {sequence_.constant(), behind_.constant(), batch}; }
  Pointer<const float, Place::device> q() const { return q_.constant(); }
  const std::vector<float>& queries() const { return queries_; }
  std::vector<float> outputs() const { return out_.values(); }
  SetTable<Place::device> sets() const {
    return {slots_.pointer(), count_.pointer(), capacity_, static_cast<int>(heads())};
  }
  std::int32_t set_length() const { return capacity_; }
  /// Ascending lists of `length` slots for each head; in runs of `run`.
  void make_sets(std::mt19937& random, std::int32_t length, int slots, int run = 1) {
    capacity_ = std::max(length / run, 1) * run;
    lists_.assign(heads() * static_cast<std::size_t>(capacity_), 0);
    const int units = capacity_ / run;
    const int of = slots / run;
    for (std::size_t head = 0; head < heads(); ++head) {
      for (int u = 0; u < units; ++u) {
        const int low = static_cast<int>(static_cast<std::int64_t>(u) * of / units);
        const int high = static_cast<int>(static_cast<std::int64_t>(u + 1) * of / units);
        const int unit = low + static_cast<int>(random() % static_cast<unsigned>(high - low));
        for (int j = 0; j < run; ++j) {
          lists_[head * static_cast<std::size_t>(capacity_) + static_cast<std::size_t>(u * run + j)] = unit * run + j;
        }
      }
    }
    slots_ = Array<std::int32_t>(stream_, lists_);
    count_ = Array<std::int32_t>(stream_, std::vector<std::int32_t>(heads(), capacity_));
  }
  AttendOp<Place::device> attend(int layer, const Array<Read>& reads) const {
    return {cache(layer), rows(), q(), kGroup, kScale, reads.constant(), sets(), out_.pointer(), lse_.pointer()};
  }

  /// The last head of the last layer against the reference, everything or its set. Pages must lie in order.
  double error(bool set) const {
    const std::size_t each = static_cast<std::size_t>((tokens + kPageTokens - 1) / kPageTokens);
    const std::size_t at = (static_cast<std::size_t>(layers) * heads() - 1) * each * pool_.format.page_bytes();
    std::vector<std::byte> k(each * pool_.format.page_bytes()), v(k.size());
    pool_.k.copy_out(at, k);
    pool_.v.copy_out(at, v);
    std::vector<PageId> pages(each);
    std::iota(pages.begin(), pages.end(), 0U);
    const HeadView view{k.data(), v.data(), pages.data(), nullptr, tokens};
    const std::int32_t zero = 0, one = 1;
    const Read read{.kind = set ? Read::Kind::sets : Read::Kind::everything};
    std::vector<std::int32_t> list(lists_.end() - capacity_, lists_.end());
    std::int32_t count = capacity_;
    constexpr std::size_t kValues = static_cast<std::size_t>(kGroup) * kDim;
    std::vector<float> want(kValues), lse(kGroup);
    ref::Operations().attend({{pool_.format, &view, 1, 1},
                              {&zero, &one, 1},
                              queries_.data() + queries_.size() - kValues,
                              kGroup,
                              kScale,
                              &read,
                              {list.data(), &count, capacity_, 1},
                              want.data(),
                              lse.data()});
    const std::vector<float> all = out_.values();
    double wrong = 0, size = 0;
    for (std::size_t i = 0; i < kValues; ++i) {
      const double got = all[all.size() - kValues + i];
      wrong += (got - want[i]) * (got - want[i]);
      size += static_cast<double>(want[i]) * want[i];
    }
    return std::sqrt(wrong / size);
  }

  int batch, tokens, layers = 0;

 private:
  Stream& stream_;
  const Pool& pool_;
  Array<PageId> pages_;
  Array<HeadView> views_;
  Array<std::int32_t> sequence_, behind_, slots_, count_;
  Array<float> q_, out_, lse_;
  std::vector<float> queries_;
  std::vector<std::int32_t> lists_;
  std::int32_t capacity_ = 0;
};

/// Median seconds of one call of `work(layer)`, all layers back to back in a graph.
double measure(Stream& stream, int layers, const std::function<void(int)>& work) {
  work(0);
  stream.synchronize();
  const int calls = std::max(layers, 8);
  Graph graph(stream, [&] {
    for (int call = 0; call < calls; ++call) work(call % layers);
  });
  std::vector<double> seconds{graph.timed_seconds()};
  const int runs = std::clamp(static_cast<int>(0.4 / seconds[0]), 4, 30);
  seconds.clear();
  for (int run = 0; run < runs; ++run) seconds.push_back(graph.timed_seconds() / calls);
  std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
  return seconds[static_cast<std::size_t>(runs / 2)];
}

class Bench {
 public:
  Bench(Stream& stream, const Wanted& wanted, KvFormat format, std::size_t pages)
      : stream_(stream), wanted_(wanted), operations_(cuda::make_operations(stream)), pool_(stream, format, pages) {
    const std::size_t bytes = pool_.k.size() / 16384 * 16384;
    const Array<unsigned> sum(stream, 1);
    bandwidth_ = static_cast<double>(bytes) / measure(stream, 2, [&](int layer) {
                   cuda::read_all(stream_, (layer == 0 ? pool_.k : pool_.v).raw(), bytes, sum.pointer().raw());
                 });
    fmt::print("{}, plain reads: {:.0f} GB/s\n", name(format.type), bandwidth_ * 1e-9);
  }

  void run() {
    fmt::print("{:>3} {:>7} {:<26} {:>10} {:>8}\n", "B", "N", "what", "us", "of read");
    for (const int tokens : wanted_.tokens) {
      for (const int batch : wanted_.batches) shape(batch, tokens);
    }
  }

  const nlohmann::ordered_json& rows() const { return rows_; }
  /// The file of results (bench/README.md): the machine is the device.
  std::string text(const nlohmann::ordered_json& rows) const {
    nlohmann::ordered_json results =
        results_head("cuda_attention_bench", stream_.device(), bandwidth_, wanted_.command, nullptr);
    results["settings"] = {{"query_heads", kKvHeads * kGroup},
                           {"kv_heads", kKvHeads},
                           {"dim", kDim},
                           {"kv_type", fmt::format("{}", fmt::join(wanted_.caches, ","))},
                           {"page", kPageTokens},
                           {"shuffled", wanted_.shuffled},
                           {"share", wanted_.share}};
    results["rows"] = rows;
    return results.dump(1) + "\n";
  }

 private:
  void shape(int batch, int tokens) {
    Bed bed(stream_, pool_, batch, tokens, wanted_);
    const std::size_t heads = bed.heads();
    const double row = static_cast<double>(2 * pool_.format.read_bytes());
    const double dense_bytes = static_cast<double>(heads) * tokens * row;
    const double set_bytes = static_cast<double>(heads) * bed.set_length() * (row + 4);
    const auto reads = [&](int dense_heads, int settled) {
      std::vector<Read> made(heads);
      for (std::size_t i = 0; i < heads; ++i) {
        const bool dense = static_cast<int>(i % kKvHeads) < dense_heads;
        made[i] = {dense ? Read::Kind::everything : Read::Kind::sets, static_cast<std::int32_t>(i), 0, 0, 0};
        made[i].settled = settled;
      }
      return Array<Read>(stream_, made);
    };
    const Array<Read> all = reads(kKvHeads, 1), none = reads(0, 1), quarter = reads(2, 1), half = reads(4, 1);
    const auto attend = [&](const Array<Read>& which) {
      return [&](int layer) { operations_->attend(bed.attend(layer, which)); };
    };
    const auto checked = [&](const Array<Read>& which, bool set) {
      if (!wanted_.check || wanted_.shuffled) return;
      operations_->attend(bed.attend(bed.layers - 1, which));
      const double error = bed.error(set);
      if (!(error < 1e-3)) fmt::print("WRONG: relative error {:.2e}\n", error);
    };
    checked(all, false);
    checked(none, true);
    report(bed, "dense", attend(all), dense_bytes);
    report(bed, "gathered", attend(none), set_bytes);
    report(bed, "a quarter dense", attend(quarter), dense_bytes / 4 + set_bytes * 3 / 4);
    report(bed, "half dense", attend(half), (dense_bytes + set_bytes) / 2);
    anchor(bed, reads(0, 0), dense_bytes, set_bytes);
    by_pages(bed, none, set_bytes);
    std::mt19937 random(6);
    if (tokens == 131072 && batch == 1) {
      for (const int length : {256, 1024, 4096}) {
        bed.make_sets(random, length, tokens);
        report(bed, fmt::format("gathered {}", length), attend(none), static_cast<double>(heads) * length * (row + 4));
      }
    }
    if (tokens == 131072) {
      bed.make_sets(random, tokens / 10, tokens, 16);
      report(bed, "gathered blocks of 16", attend(none), set_bytes);
    }
    for (const int rows : wanted_.prefill) {
      if (batch > 1) continue;
      attend(all)(bed.layers - 1);
      prompt(bed, std::min(rows, tokens));
      tiles(bed, std::min(rows, tokens));
    }
  }

  void anchor(Bed& bed, const Array<Read>& none, double dense_bytes, double set_bytes) {
    const std::size_t stride = static_cast<std::size_t>(bed.tokens);
    const Array<float> scores(stream_, bed.heads() * kGroup * stride), lse(stream_, bed.heads() * kGroup);
    std::vector<RowHead> which;
    std::vector<Choice> choices;
    for (int row = 0; row < bed.batch; ++row) {
      for (int head = 0; head < kKvHeads; ++head) {
        choices.push_back({.row = row,
                           .head = head,
                           .set = static_cast<std::int32_t>(which.size()),
                           .wanted = bed.set_length(),
                           .tail_units = bed.tokens});
        which.push_back({row, head});
      }
    }
    const Array<RowHead> row_heads(stream_, which);
    const Array<Choice> device_choices(stream_, choices);
    const int count = static_cast<int>(which.size());
    const ScoreTable<Place::device> table{scores.pointer(), lse.pointer(), stride};
    const auto score = [&](int layer) {
      operations_->score({bed.cache(layer), bed.rows(), bed.q(), kGroup, kScale, row_heads.constant(), count, table});
    };
    const auto select = [&](int layer) {
      operations_->select({bed.cache(layer), bed.rows(), kGroup, table, device_choices.constant(), count, bed.sets()});
    };
    const double score_bytes = static_cast<double>(bed.heads()) * kGroup * bed.tokens * 4;
    score(0);
    report(bed, "score", score, dense_bytes / 2 + score_bytes);
    report(bed, "select", select, score_bytes);
    const auto all = [&](int layer) {
      score(layer);
      select(layer);
      operations_->attend(bed.attend(layer, none));
    };
    report(bed, "anchor", all, dense_bytes / 2 + set_bytes);
    if (wanted_.check && !wanted_.shuffled) select_again(bed);
  }
  /// The last rows of a prompt. The last of them asks what the bed's row asked, which was held against the reference.
  void prompt(const Bed& bed, int rows) {
    constexpr std::size_t kRow = static_cast<std::size_t>(kKvHeads * kGroup) * kDim;
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<float> queries(static_cast<std::size_t>(rows) * kRow);
    for (float& x : queries) x = normal(random);
    std::copy(bed.queries().begin(), bed.queries().end(), queries.end() - static_cast<std::ptrdiff_t>(kRow));
    const Array<float> q(stream_, queries), out(stream_, queries.size()), lse(stream_, queries.size() / kDim);
    const auto work = [&](int layer) {
      operations_->prefill({bed.cache(layer),
                            {.rows = rows, .behind = rows},
                            q.constant(),
                            kGroup,
                            kScale,
                            out.pointer(),
                            lse.pointer()});
    };
    work(bed.layers - 1);
    const std::vector<float> got = out.values(), want = bed.outputs();
    double wrong = 0, size = 0;
    for (std::size_t i = 0; i < kRow; ++i) {
      wrong += std::pow(got[got.size() - kRow + i] - want[i], 2);
      size += std::pow(want[i], 2);
    }
    if (!(std::sqrt(wrong / size) < 5e-3)) fmt::print("WRONG: relative error {:.2e}\n", std::sqrt(wrong / size));
    const double seconds = measure(stream_, bed.layers, work);
    const double flops =
        4.0 * kDim * kKvHeads * kGroup * rows * (static_cast<double>(bed.tokens) - (rows - 1) / 2.0) / seconds;
    fmt::print("{:>3} {:>7} {:<26} {:>10.2f} {:>8.1f} TFLOP/s\n", bed.batch, bed.tokens,
               fmt::format("prefill {}", rows), seconds * 1e6, flops * 1e-12);
    rows_.push_back({{"cache", name(pool_.format.type)},
                     {"batch", bed.batch},
                     {"tokens", bed.tokens},
                     {"what", "prefill"},
                     {"rows", rows},
                     {"us", std::round(seconds * 1e8) / 100},
                     {"tflops", std::round(flops * 1e-11) / 10}});
  }
  /// The same rows in tiles of 32 that read a tenth of what lies before them, and what an anchor's choice takes before.
  void tiles(const Bed& bed, int rows) {
    using namespace kernels::cuda;  // NOLINT(google-build-using-namespace): the operations of tiles.h
    constexpr int kTile = kTileSumRows / kGroup, kShare = 10;
    const std::int32_t capacity = bed.tokens / kShare + 1;
    std::mt19937 random(9);
    std::normal_distribution<float> normal;
    std::vector<float> queries(static_cast<std::size_t>(rows) * kKvHeads * kGroup * kDim);
    for (float& x : queries) x = normal(random);
    std::vector<PromptRows> pieces;
    std::vector<TileRead> reads;
    std::vector<std::int32_t> slots, counts;
    double pairs = 0, before = 0;
    for (int first = 0; first + kTile <= rows; first += kTile) {
      const std::int32_t start = bed.tokens - rows + first;
      pieces.push_back({.row = first, .rows = kTile, .behind = rows - first});
      before += static_cast<double>(kTile) * start;
      for (int head = 0; head < kKvHeads; ++head) {
        reads.push_back({.set = static_cast<std::int32_t>(counts.size())});
        counts.push_back(start / kShare);
        for (std::int32_t i = 0; i < capacity; ++i) {
          slots.push_back(i * kShare + static_cast<std::int32_t>(random() % kShare));
        }
      }
      pairs += kTile * (start / kShare + (kTile + 1) / 2.0);
    }
    const int count = static_cast<int>(pieces.size());
    if (count == 0) return;
    const std::size_t stride = static_cast<std::size_t>(bed.tokens);
    const Array<PromptRows> tiles(stream_, pieces);
    const Array<TileRead> device_reads(stream_, reads);
    const Array<std::int32_t> device_slots(stream_, slots), device_counts(stream_, counts);
    const Array<float> q(stream_, queries), out(stream_, queries.size()), lse(stream_, queries.size() / kDim);
    const auto tell = [&](const std::string& what, double products, const std::function<void(int)>& work) {
      const double seconds = measure(stream_, bed.layers, work);
      const double flops = 2.0 * kDim * kKvHeads * kGroup * products / seconds;
      fmt::print("{:>3} {:>7} {:<26} {:>10.2f} {:>8.1f} TFLOP/s\n", bed.batch, bed.tokens,
                 fmt::format("{} {}", what, rows), seconds * 1e6, flops * 1e-12);
      rows_.push_back({{"batch", bed.batch},
                       {"tokens", bed.tokens},
                       {"what", what},
                       {"rows", rows},
                       {"us", std::round(seconds * 1e8) / 100},
                       {"tflops", std::round(flops * 1e-11) / 10}});
    };
    tell("tiles", 2 * pairs, [&](int layer) {
      attend_tiles(stream_, {bed.cache(layer),
                             tiles.constant(),
                             count,
                             kTile,
                             device_reads.constant(),
                             {device_slots.pointer(), device_counts.pointer(), capacity, count * kKvHeads},
                             q.constant(),
                             kGroup,
                             kScale,
                             out.pointer()});
    });
    if (!has_tile_sums(stream_, kDim)) return;
    tell("sums of rows", before + rows * (kTile + 1) / 2.0, [&](int layer) {
      sum_rows(stream_,
               {bed.cache(layer), {.rows = rows, .behind = rows}, q.constant(), kGroup, kScale, lse.pointer()});
    });
    const Array<float> sums(stream_, pieces.size() * kKvHeads * kTileSumParts * stride);
    tell("sums of tiles", before, [&](int layer) {
      sum_tiles(stream_, {bed.cache(layer), tiles.constant(), count, q.constant(), lse.constant(), kGroup, kScale,
                          sums.pointer(), stride});
    });
  }
  /// Bounds of pages of 16 tokens: made for all pages, searched, the best chosen and attended to.
  void by_pages(Bed& bed, const Array<Read>& none, double set_bytes) {
    const std::int32_t blocks = bed.tokens / kPageTokens;
    const std::size_t stride = static_cast<std::size_t>((blocks + 31) / 32 * 32);
    const Array<std::byte> bounds(stream_, pool_.pages * summary_bytes(pool_.format));
    const Array<float> scores(stream_, bed.heads() * kGroup * stride), lse(stream_, bed.heads() * kGroup);
    std::vector<PageRange> ranges;
    std::vector<Search> searches;
    std::vector<Choice> choices;
    for (int row = 0; row < bed.batch; ++row) {
      for (int head = 0; head < kKvHeads; ++head) {
        choices.push_back({.row = row,
                           .head = head,
                           .set = static_cast<std::int32_t>(searches.size()),
                           .pooling = Pooling::max_score,
                           .wanted = bed.set_length() / kPageTokens,
                           .block = kPageTokens,
                           .by_unit = 1,
                           .tail_units = blocks});
        searches.push_back({row, head, 1, 0, blocks});
        ranges.push_back({row, head, 0, blocks});
      }
    }
    const Array<PageRange> device_ranges(stream_, ranges);
    const Array<Search> device_searches(stream_, searches);
    const Array<Choice> device_choices(stream_, choices);
    const int count = static_cast<int>(searches.size());
    const SummaryTable<Place::device> summaries{bounds.pointer(), summary_type(pool_.format.type)};
    const ScoreTable<Place::device> table{scores.pointer(), lse.pointer(), stride};
    const auto summarise = [&](int layer) {
      operations_->summarise({bed.cache(layer), device_ranges.constant(), count, blocks, summaries});
    };
    const auto search = [&](int layer) {
      operations_->search({bed.cache(layer), bed.rows(), bed.q(), kGroup, kScale, summaries, device_searches.constant(),
                           count, blocks, table});
    };
    const auto select = [&](int layer) {
      operations_->select({bed.cache(layer), bed.rows(), kGroup, table, device_choices.constant(), count, bed.sets()});
    };
    for (int layer = 0; layer < bed.layers; ++layer) summarise(layer);
    const double bytes = static_cast<double>(bed.heads()) * blocks * static_cast<double>(summary_bytes(pool_.format));
    report(bed, "bounds made", summarise, bytes * kPageTokens / 2 + bytes);
    report(bed, "bounds searched", search, bytes);
    report(bed, "pages chosen", select, static_cast<double>(bed.heads()) * kGroup * blocks * 4);
    const auto all = [&](int layer) {
      search(layer);
      select(layer);
      operations_->attend(bed.attend(layer, none));
    };
    report(bed, "by pages", all, bytes + set_bytes);
    if (wanted_.check && !wanted_.shuffled) select_again(bed);
  }
  /// The bed's own sets for what follows.
  void select_again(Bed& bed) {
    std::mt19937 random(5);
    bed.make_sets(random, static_cast<std::int32_t>(std::lround(bed.tokens * wanted_.share)), bed.tokens);
  }

  void report(const Bed& bed, const std::string& what, const std::function<void(int)>& work, double bytes) {
    if (!wanted_.only.empty() && std::find(wanted_.only.begin(), wanted_.only.end(), what) == wanted_.only.end())
      return;
    const double seconds = measure(stream_, bed.layers, work);
    fmt::print("{:>3} {:>7} {:<26} {:>10.2f} {:>8.3f}\n", bed.batch, bed.tokens, what, seconds * 1e6,
               bytes / seconds / bandwidth_);
    rows_.push_back({{"cache", name(pool_.format.type)},
                     {"batch", bed.batch},
                     {"tokens", bed.tokens},
                     {"what", what},
                     {"us", std::round(seconds * 1e8) / 100},
                     {"bytes", bytes},
                     {"of_read", std::round(bytes / seconds / bandwidth_ * 1e4) / 1e4}});
    std::fflush(stdout);
  }

  Stream& stream_;
  Wanted wanted_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  std::unique_ptr<Operations<Place::device>> operations_;
  Pool pool_;
  double bandwidth_ = 1;
};

}  // namespace
}  // namespace glimpse::bench

int main(int argc, char** argv) {
  using namespace glimpse;
  bench::Wanted wanted;
  CLI::App app("attention on a GPU");
  app.add_option("--batch", wanted.batches, "sequences")->delimiter(',');
  app.add_option("--tokens", wanted.tokens, "slots of each sequence")->delimiter(',');
  app.add_option("--share", wanted.share, "what gathered heads read of them");
  app.add_option("--only", wanted.only, "measure these alone, such as dense,gathered")->delimiter(',');
  app.add_option("--prefill", wanted.prefill, "measure so many rows of a prompt too, where there is one sequence")
      ->delimiter(',');
  app.add_option("--cache", wanted.caches, "types of the cache, one after the other: bf16, f16 or q8_0")
      ->delimiter(',');
  app.add_option("--json", wanted.json, "write the results to this file");
  app.add_flag("--shuffled", wanted.shuffled, "pages in random order");
  app.add_flag("!--no-check", wanted.check, "leave the answers unchecked");
  CLI11_PARSE(app, argc, argv);
  wanted.command = "cuda_attention_bench";
  for (int i = 1; i < argc; ++i) wanted.command += std::string(" ") + argv[i];
  wanted.command.resize(std::min(wanted.command.size(), wanted.command.find(" --json")));
  try {
    std::vector<kernels::KvFormat> formats;
    for (const std::string& cache : wanted.caches) {
      formats.push_back({parse_kv_type(cache), bench::kDim});
      kernels::cuda::require_supported(formats.back());
      if (formats.back().type == KvType::q8_0 && !wanted.prefill.empty()) {
        throw UserError("rows of a prompt read no bytes: --prefill takes --cache bf16 or f16");
      }
    }
    const auto found = kernels::cuda::devices();
    if (found.empty()) throw UserError("this machine has no CUDA device of compute capability 8.0 or later");
    kernels::cuda::Stream stream(found.front().number);
    std::size_t most = 0;
    for (const int batch : wanted.batches) {
      for (const int tokens : wanted.tokens) {
        most = std::max(most, static_cast<std::size_t>(batch) * 8 * static_cast<std::size_t>(tokens / 16 + 1));
      }
    }
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    std::string text;
    for (const kernels::KvFormat& format : formats) {
      bench::Bench bench(stream, wanted, format, std::max<std::size_t>(most, std::size_t{1} << 20));
      bench.run();
      for (const auto& row : bench.rows()) rows.push_back(row);
      text = bench.text(rows);
    }
    if (!wanted.json.empty()) std::ofstream(wanted.json) << text;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  }
  return 0;
}
