#include "bench/attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <random>

#include "bench/bench_cache.h"
#include "bench/few_rows_cases.h"
#include "bench/prefill_cases.h"
#include "bench/stream.h"
#include "bench/workers.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::bench {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): the whole file is about them

/// Work items of all layers in storage order (by range, then by head), an even share of each layer's for each thread.
/// They know what comes next.
template <class Item>
struct LayerItems {
  int per_layer = 0;
  int threads = 1;
  std::vector<Item> items;
  std::vector<float> results;  ///< what they write

  void link() {
    for (std::size_t i = 0; i + 1 < items.size(); ++i) items[i].next = &items[i + 1];
  }
  /// Calls `work` with each item of share number `share`, of [layer, thread].
  template <class Work>
  void run(int share, const Work& work) const {
    const int first = share / threads * per_layer;
    const int thread = share % threads;
    for (int i = first + thread * per_layer / threads; i < first + (thread + 1) * per_layer / threads; ++i) {
      work(items[static_cast<std::size_t>(i)]);
    }
  }
};

/// Item `i` of all layers': a range of what a head reads, `entries` rows.
template <class Item>
Item range_of_head(const BenchCache& cache, int entries, int i) {
  const int heads = cache.shape.heads;
  const int per_layer = (entries + kSplitTokens - 1) / kSplitTokens * heads;
  const int range = i % per_layer / heads;
  const auto head = static_cast<std::size_t>(i / per_layer * heads + i % heads);
  Item item;
  item.head = &cache.views[head];
  item.query = cache.query_of(head);
  item.group = cache.shape.group;
  item.scale = cache.scale();
  item.begin = range * kSplitTokens;
  item.end = std::min(entries, (range + 1) * kSplitTokens);
  return item;
}

Case attend_case(const Shared& cache, bool gathered, int threads) {
  const Shape& shape = cache->shape;
  const int entries = gathered ? kChosen : cache->tokens;
  const int ranges = (entries + kSplitTokens - 1) / kSplitTokens;
  const int per_layer = ranges * shape.heads;
  const std::size_t size = partial_floats(shape.group, shape.format.dim);
  const auto all = std::make_shared<LayerItems<AttendItem>>(LayerItems<AttendItem>{per_layer, threads, {}, {}});
  all->results.resize(static_cast<std::size_t>(per_layer * cache->layers) * size);
  for (int i = 0; i < per_layer * cache->layers; ++i) {
    AttendItem& item = all->items.emplace_back(range_of_head<AttendItem>(*cache, entries, i));
    const auto head = static_cast<std::size_t>(item.head - cache->views.data());
    item.list = gathered ? cache->lists[head].data() : nullptr;
    item.partial = all->results.data() + static_cast<std::size_t>(i) * size;
  }
  all->link();
  Case result;
  result.name = label(gathered ? "gathered" : "dense", shape);
  result.layers = cache->layers;
  result.items = threads * cache->layers;
  result.bytes = static_cast<double>(shape.heads) * entries *
                 (2.0 * static_cast<double>(shape.format.read_bytes()) + (gathered ? sizeof(std::int32_t) : 0));
  result.flops = 4.0 * shape.heads * entries * shape.group * shape.format.dim;
  result.run = [=](int share) { all->run(share, [&](const AttendItem& item) { attend(cache->shape.format, item); }); };
  result.check = [=, name = result.name] {
    for (const std::size_t i : {std::size_t{0}, all->items.size() - 1}) {
      AttendItem item = all->items[i];
      attend(cache->shape.format, item);
      std::vector<float> want(size);
      item.partial = want.data();
      ref::attend(cache->shape.format, item);
      expect_near({all->results.data() + i * size, size}, want, 2e-5, name);
    }
  };
  return result;
}

Case score_case(const Shared& cache, int threads) {
  const Shape& shape = cache->shape;
  const int ranges = (cache->tokens + kSplitTokens - 1) / kSplitTokens;
  const int per_layer = ranges * shape.heads;
  const auto stride = static_cast<std::size_t>(cache->tokens);
  const std::size_t size = stride * static_cast<std::size_t>(shape.group);
  const auto all = std::make_shared<LayerItems<ScoreItem>>(LayerItems<ScoreItem>{per_layer, threads, {}, {}});
  all->results.resize(size * static_cast<std::size_t>(shape.heads * cache->layers));
  for (int i = 0; i < per_layer * cache->layers; ++i) {
    ScoreItem& item = all->items.emplace_back(range_of_head<ScoreItem>(*cache, cache->tokens, i));
    item.scores = all->results.data() + static_cast<std::size_t>(item.head - cache->views.data()) * size;
    item.score_stride = stride;
  }
  all->link();
  Case result;
  result.name = label("score", shape);
  result.layers = cache->layers;
  result.items = threads * cache->layers;
  result.bytes = static_cast<double>(shape.heads) * cache->tokens *
                 (static_cast<double>(shape.format.read_bytes()) + sizeof(float) * shape.group);
  result.flops = 2.0 * shape.heads * cache->tokens * shape.group * shape.format.dim;
  result.run = [=](int share) { all->run(share, [&](const ScoreItem& item) { score(cache->shape.format, item); }); };
  result.check = [=, name = result.name] {
    ScoreItem item = all->items[0];
    score(cache->shape.format, item);
    std::vector<float> want(size);
    item.scores = want.data();
    ref::score(cache->shape.format, item);
    expect_near({all->results.data(), kSplitTokens}, std::span(want).first(kSplitTokens), 2e-5, name);
  };
  return result;
}

/// Rows of scores as heads have them: pooled, then chosen from.
struct ScoreRows {
  ScoreRows(int count, int queries, int length)
      : rows(count), group(queries), tokens(static_cast<std::size_t>(length)) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    scores.resize(static_cast<std::size_t>(count * queries) * tokens);
    for (float& s : scores) s = 2 * normal(random);
    lse.assign(static_cast<std::size_t>(count * queries), 12.4F);
    pooled.resize(static_cast<std::size_t>(count) * tokens);
    for (float& p : pooled) p = std::exp(2 * normal(random));
    chosen.resize(static_cast<std::size_t>(count) * kChosen);
    workspace.resize(static_cast<std::size_t>(count) * select_workspace(tokens));
  }
  std::span<float> pooled_row(int i) { return {pooled.data() + static_cast<std::size_t>(i) * tokens, tokens}; }

  int rows, group;
  std::size_t tokens;
  std::vector<float> scores, lse, pooled;
  std::vector<std::int32_t> chosen;
  std::vector<std::byte> workspace;
};

Case select_case(int tokens) {
  auto rows = std::make_shared<ScoreRows>(24, 1, tokens);
  const auto select = [=](int i) {
    const std::size_t work = select_workspace(rows->tokens);
    return select_top_k(rows->pooled_row(i), kChosen,
                        std::span(rows->chosen).subspan(static_cast<std::size_t>(i) * kChosen, kChosen),
                        std::span(rows->workspace).subspan(static_cast<std::size_t>(i) * work, work));
  };
  Case result;
  result.name = fmt::format("select {} of {}, 3 heads", kChosen, tokens);
  result.layers = rows->rows / 3;
  result.items = rows->rows;
  result.bytes = 3.0 * (sizeof(float) * static_cast<double>(tokens) + sizeof(std::int32_t) * kChosen);
  result.run = [=](int i) { select(i); };
  result.check = [=, name = result.name] {
    std::vector<std::int32_t> want(kChosen);
    const std::size_t count = ref::select_top_k(rows->pooled_row(1), kChosen, want);
    check(select(1) == count && std::equal(want.begin(), want.end(), rows->chosen.begin() + kChosen), name);
  };
  return result;
}

Case pool_case(int tokens) {
  auto rows = std::make_shared<ScoreRows>(24, 3, tokens);
  const auto pool = [=](int i) {
    const std::size_t first = static_cast<std::size_t>(i) * 3;
    pool_mean_probability(rows->scores.data() + first * rows->tokens, rows->tokens, rows->lse.data() + first, 3,
                          rows->pooled_row(i));
  };
  Case result;
  result.name = fmt::format("pool 3 x {}, 3 heads", tokens);
  result.layers = rows->rows / 3;
  result.items = rows->rows;
  result.bytes = 3.0 * 4 * sizeof(float) * tokens;
  result.run = pool;
  result.check = [=, name = result.name] {
    pool(0);
    std::vector<float> want(rows->tokens);
    ref::pool_mean_probability(rows->scores.data(), rows->tokens, rows->lse.data(), 3, want);
    expect_near(rows->pooled_row(0), want, 1e-6, name);
  };
  return result;
}

std::vector<Case> make_cases(const AttentionBenchOptions& options, int threads) {
  const auto wanted = [&](const std::string& name) {
    return options.only.empty() || std::any_of(options.only.begin(), options.only.end(), [&](const std::string& part) {
             return name.find(part) != std::string::npos;
           });
  };
  std::vector<Case> cases;
  const auto add = [&](const Shape& shape, bool with_score) {
    const std::vector<PrefillRows> prefills = prefill_rows(shape, options.tokens);
    const std::vector<FewRows> few = few_rows(shape, options.tokens);
    const bool any =
        std::any_of(few.begin(), few.end(), [&](const FewRows& rows) { return wanted(few_rows_name(shape, rows)); }) ||
        wanted(label("dense", shape)) || wanted(label("gathered", shape)) || wanted(label("score", shape)) ||
        std::any_of(prefills.begin(), prefills.end(),
                    [&](const PrefillRows& rows) { return wanted(prefill_name(shape, rows)); });
    if (!any) return;
    const auto cache = std::make_shared<BenchCache>(shape, options.tokens);
    std::vector<Case> made{attend_case(cache, false, threads)};
    for (const PrefillRows& rows : prefills) {
      if (wanted(prefill_name(shape, rows))) made.push_back(prefill_case(cache, rows));
    }
    for (const FewRows& rows : few) {
      if (wanted(few_rows_name(shape, rows))) made.push_back(few_rows_case(cache, rows, threads));
    }
    if (options.tokens > kChosen) made.push_back(attend_case(cache, true, threads));
    if (with_score) made.push_back(score_case(cache, threads));
    for (Case& c : made) {
      if (wanted(c.name)) cases.push_back(std::move(c));
    }
  };
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    add({{type, 64}, 3, 3}, type == KvType::bf16 || type == KvType::f16);
  }
  add({{KvType::bf16, 128}, 8, 4}, true);
  add({{KvType::bf16, 128}, 4, 8}, false);
  for (const auto& make : {pool_case, select_case}) {
    if (options.tokens <= kChosen) break;
    Case c = make(options.tokens);
    if (wanted(c.name)) cases.push_back(std::move(c));
  }
  return cases;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double seconds(Workers& workers, int items, const std::function<void(int)>& run) {
  const auto start = std::chrono::steady_clock::now();
  workers.run(items, run);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<AttentionBenchRow> run_attention_cases(const AttentionBenchOptions& options) {
  if (options.repeats < 1 || options.tokens < 1 || options.threads < 0) {
    throw UserError("repeats and tokens must be at least 1, threads at least 0 (all)");
  }
  const int processors = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = options.threads > 0 ? options.threads : processors;
  std::vector<Case> cases = make_cases(options, threads);
  for (const Case& c : cases) c.check();
  Workers workers(threads);
  Stream stream;
  const auto stream_run = [&](int i) { stream.run(i); };
  std::vector<double> stream_s;
  struct Times {
    std::vector<double> s, fraction;
  };
  std::vector<Times> times(cases.size());
  for (int round = -1; round < options.repeats; ++round) {  // the first round warms up
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const double streamed = seconds(workers, Stream::items(), stream_run);
      const double taken = seconds(workers, cases[c].items, cases[c].run) / cases[c].layers;
      if (round < 0) continue;
      stream_s.push_back(streamed);
      times[c].s.push_back(taken);
      times[c].fraction.push_back(cases[c].bytes / taken / (static_cast<double>(Stream::kBytes) / streamed));
    }
  }
  std::vector<AttentionBenchRow> rows;
  const auto row = [&](std::string name, const std::vector<double>& s) {
    AttentionBenchRow made;
    made.name = std::move(name);
    made.median_s = median(s);
    made.min_s = *std::min_element(s.begin(), s.end());
    made.max_s = *std::max_element(s.begin(), s.end());
    return made;
  };
  if (stream_s.empty()) return rows;
  rows.push_back(row(fmt::format("streaming read, {} threads", threads), stream_s));
  rows.back().bytes = static_cast<double>(Stream::kBytes);
  rows.back().fraction = 1;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    rows.push_back(row(cases[c].name, times[c].s));
    rows.back().bytes = cases[c].bytes;
    rows.back().fraction = median(times[c].fraction);
    rows.back().gflops = cases[c].flops / rows.back().median_s / 1e9;
  }
  return rows;
}

std::string attention_table(const std::vector<AttentionBenchRow>& rows) {
  std::string text =
      "| case | bytes needed | median | spread | GB/s | of streamed | GFLOP/s |\n|---|--:|--:|--:|--:|--:|--:|\n";
  for (const AttentionBenchRow& r : rows) {
    text += fmt::format("| {} | {:.2f} MB | {:.3f} ms | {:.3f} to {:.3f} | {:.1f} | {:.2f} | {:.1f} |\n", r.name,
                        r.bytes / 1e6, r.median_s * 1e3, r.min_s * 1e3, r.max_s * 1e3, r.bytes / r.median_s / 1e9,
                        r.fraction, r.gflops);
  }
  return text;
}

}  // namespace glimpse::bench
