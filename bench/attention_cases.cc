#include "bench/attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>

#include "bench/few_rows_cases.h"
#include "bench/prefill_cases.h"
#include "glimpse/base/error.h"
#include "glimpse/evaluate/kernel_cases.h"
#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::bench {
namespace {

using evaluate::expect_near;
using evaluate::kernel_label;
using evaluate::KernelCache;
using evaluate::KernelCase;
using evaluate::KernelShape;
using evaluate::kGatheredRows;
using evaluate::SharedCache;
using namespace kernels;  // NOLINT(google-build-using-namespace): the whole file is about them

KernelCase score_case(const SharedCache& cache, int threads) {
  const KernelShape& shape = cache->shape;
  const int per_layer = evaluate::items_of_layer(shape, cache->tokens);
  const auto stride = static_cast<std::size_t>(cache->tokens);
  const std::size_t size = stride * static_cast<std::size_t>(shape.group);
  using Items = evaluate::LayerItems<ScoreItem>;
  const auto all = std::make_shared<Items>(Items{per_layer, threads, {}, {}});
  all->results.resize(size * static_cast<std::size_t>(shape.heads * cache->layers));
  for (int i = 0; i < per_layer * cache->layers; ++i) {
    ScoreItem& item = all->items.emplace_back(evaluate::range_of_head<ScoreItem>(*cache, cache->tokens, i));
    item.scores = all->results.data() + static_cast<std::size_t>(item.head - cache->views.data()) * size;
    item.score_stride = stride;
  }
  all->link();
  KernelCase result;
  result.name = kernel_label("score", shape);
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
    return expect_near({all->results.data(), kSplitTokens}, std::span(want).first(kSplitTokens), 2e-5, name);
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
    chosen.resize(static_cast<std::size_t>(count) * kGatheredRows);
    workspace.resize(static_cast<std::size_t>(count) * select_workspace(tokens));
  }
  std::span<float> pooled_row(int i) { return {pooled.data() + static_cast<std::size_t>(i) * tokens, tokens}; }

  int rows, group;
  std::size_t tokens;
  std::vector<float> scores, lse, pooled;
  std::vector<std::int32_t> chosen;
  std::vector<std::byte> workspace;
};

KernelCase select_case(int tokens) {
  auto rows = std::make_shared<ScoreRows>(24, 1, tokens);
  const auto select = [=](int i) {
    const std::size_t work = select_workspace(rows->tokens);
    return select_top_k(rows->pooled_row(i), kGatheredRows,
                        std::span(rows->chosen).subspan(static_cast<std::size_t>(i) * kGatheredRows, kGatheredRows),
                        std::span(rows->workspace).subspan(static_cast<std::size_t>(i) * work, work));
  };
  KernelCase result;
  result.name = fmt::format("select {} of {}, 3 heads", kGatheredRows, tokens);
  result.layers = rows->rows / 3;
  result.items = rows->rows;
  result.bytes = 3.0 * (sizeof(float) * static_cast<double>(tokens) + sizeof(std::int32_t) * kGatheredRows);
  result.run = [=](int i) { select(i); };
  result.check = [=, name = result.name] {
    std::vector<std::int32_t> want(kGatheredRows);
    const std::size_t count = ref::select_top_k(rows->pooled_row(1), kGatheredRows, want);
    check(select(1) == count && std::equal(want.begin(), want.end(), rows->chosen.begin() + kGatheredRows), name);
    return 0.0;
  };
  return result;
}

KernelCase pool_case(int tokens) {
  auto rows = std::make_shared<ScoreRows>(24, 3, tokens);
  const auto pool = [=](int i) {
    const std::size_t first = static_cast<std::size_t>(i) * 3;
    pool_mean_probability(rows->scores.data() + first * rows->tokens, rows->tokens, rows->lse.data() + first, 3,
                          rows->pooled_row(i));
  };
  KernelCase result;
  result.name = fmt::format("pool 3 x {}, 3 heads", tokens);
  result.layers = rows->rows / 3;
  result.items = rows->rows;
  result.bytes = 3.0 * 4 * sizeof(float) * tokens;
  result.run = pool;
  result.check = [=, name = result.name] {
    pool(0);
    std::vector<float> want(rows->tokens);
    ref::pool_mean_probability(rows->scores.data(), rows->tokens, rows->lse.data(), 3, want);
    return expect_near(rows->pooled_row(0), want, 1e-6, name);
  };
  return result;
}

std::vector<KernelCase> make_cases(const AttentionBenchOptions& options) {
  const auto wanted = [&](const std::string& name) {
    return options.only.empty() || std::any_of(options.only.begin(), options.only.end(), [&](const std::string& part) {
             return name.find(part) != std::string::npos;
           });
  };
  std::vector<KernelCase> cases;
  const auto add = [&](const KernelShape& shape, bool with_score) {
    const std::vector<PrefillRows> prefills = prefill_rows(shape, options.tokens);
    const std::vector<FewRows> few = few_rows(shape, options.tokens);
    const bool any =
        std::any_of(few.begin(), few.end(), [&](const FewRows& rows) { return wanted(few_rows_name(shape, rows)); }) ||
        wanted(kernel_label("dense", shape)) || wanted(kernel_label("gathered", shape)) ||
        wanted(kernel_label("score", shape)) ||
        std::any_of(prefills.begin(), prefills.end(),
                    [&](const PrefillRows& rows) { return wanted(prefill_name(shape, rows)); });
    if (!any) return;
    const auto cache = std::make_shared<KernelCache>(shape, options.tokens, std::min(kGatheredRows, options.tokens));
    const int threads = options.threads;
    std::vector<KernelCase> made{evaluate::attend_case(cache, false, threads)};
    for (const PrefillRows& rows : prefills) {
      if (wanted(prefill_name(shape, rows))) made.push_back(prefill_case(cache, rows));
    }
    for (const FewRows& rows : few) {
      if (wanted(few_rows_name(shape, rows))) made.push_back(few_rows_case(cache, rows, threads));
    }
    if (options.tokens > kGatheredRows) made.push_back(evaluate::attend_case(cache, true, threads));
    if (with_score) made.push_back(score_case(cache, threads));
    for (KernelCase& c : made) {
      if (wanted(c.name)) cases.push_back(std::move(c));
    }
  };
  for (const KvType type : {KvType::f32, KvType::f16, KvType::bf16, KvType::q8_0}) {
    add({{type, 64}, 3, 3}, type == KvType::bf16 || type == KvType::f16);
  }
  add({{KvType::bf16, 128}, 8, 4}, true);
  add({{KvType::bf16, 128}, 4, 8}, false);
  for (const auto& make : {pool_case, select_case}) {
    if (options.tokens <= kGatheredRows) break;
    KernelCase c = make(options.tokens);
    if (wanted(c.name)) cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace

std::vector<evaluate::KernelRow> run_attention_cases(const AttentionBenchOptions& options) {
  if (options.repeats < 1 || options.tokens < 1 || options.threads < 1) {
    throw UserError("repeats, tokens and threads must be at least 1");
  }
  const std::vector<KernelCase> cases = make_cases(options);
  if (cases.empty()) return {};
  evaluate::KernelTimes times = evaluate::measure_cases(cases, options.threads, options.repeats);
  evaluate::KernelRow stream{fmt::format("streaming read, {} threads", options.threads), times.stream_median_s,
                             times.stream_least_s, times.stream_most_s};
  stream.bytes = times.read_bandwidth * times.stream_median_s;
  stream.fraction = 1;
  times.rows.insert(times.rows.begin(), std::move(stream));
  return times.rows;
}

std::string attention_table(std::span<const evaluate::KernelRow> rows) {
  std::string text =
      "| case | bytes needed | median | spread | GB/s | of streamed | GFLOP/s |\n|---|--:|--:|--:|--:|--:|--:|\n";
  for (const evaluate::KernelRow& r : rows) {
    text += fmt::format("| {} | {:.2f} MB | {:.3f} ms | {:.3f} to {:.3f} | {:.1f} | {:.2f} | {:.1f} |\n", r.name,
                        r.bytes / 1e6, r.median_s * 1e3, r.least_s * 1e3, r.most_s * 1e3, r.bytes / r.median_s / 1e9,
                        r.fraction, r.gflops);
  }
  return text;
}

}  // namespace glimpse::bench
