#include "glimpse/evaluate/kernel_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/speed.h"
#include "glimpse/evaluate/stream.h"
#include "glimpse/evaluate/thread_team.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::evaluate {
namespace {

constexpr int kRunPages = 16;
constexpr double kAttendError = 2e-5;

}  // namespace

KernelCache::KernelCache(const KernelShape& cache_shape, int length, int chosen) : shape(cache_shape), tokens(length) {
  const auto runs =
      static_cast<std::size_t>((tokens + kRunPages * kernels::kPageTokens - 1) / (kRunPages * kernels::kPageTokens));
  const auto heads = static_cast<std::size_t>(shape.heads);
  const std::size_t layer_pages = runs * heads * kRunPages;
  const std::size_t page_bytes = shape.format.page_bytes();
  layers = static_cast<int>(std::max<std::size_t>(1, kBytes / (2 * layer_pages * page_bytes)));
  const std::size_t pages = layer_pages * static_cast<std::size_t>(layers);
  k_ = HostBuffer(pages * page_bytes);
  v_ = HostBuffer(pages * page_bytes);
  tables_.resize(static_cast<std::size_t>(layers) * heads);
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    for (std::size_t page = 0; page < runs * kRunPages; ++page) {
      const std::size_t run = (t / heads * runs + page / kRunPages) * heads + t % heads;
      tables_[t].push_back(static_cast<kernels::PageId>(run * kRunPages + page % kRunPages));
    }
    views.push_back({.k_plane = k_.data(), .v_plane = v_.data(), .pages = tables_[t].data(), .slots = tokens});
  }
  fill(pages);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  query.resize(tables_.size() * static_cast<std::size_t>(shape.group * shape.format.dim));
  for (float& x : query) x = normal(random);
  std::vector<std::int32_t> all(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
  lists.resize(tables_.size());
  for (auto& list : lists) std::sample(all.begin(), all.end(), std::back_inserter(list), chosen, random);
}

/// 1,024 random rows again and again: random numbers are slower than everything that is measured.
void KernelCache::fill(std::size_t pages) {
  constexpr std::size_t kPattern = 64;
  const auto dim = static_cast<std::size_t>(shape.format.dim);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> rows(kPattern * kernels::kPageTokens * dim);
  for (float& x : rows) x = normal(random);
  const std::size_t page_bytes = shape.format.page_bytes();
  HostBuffer k(kPattern * page_bytes), v(kPattern * page_bytes);
  std::vector<kernels::PageId> table(kPattern);
  for (std::size_t p = 0; p < kPattern; ++p) table[p] = static_cast<kernels::PageId>(p);
  const kernels::HeadView head{.k_plane = k.data(),
                               .v_plane = v.data(),
                               .pages = table.data(),
                               .slots = static_cast<std::int32_t>(kPattern * kernels::kPageTokens)};
  kernels::append(shape.format,
                  {.head = &head, .k = rows.data(), .v = rows.data(), .row_stride = dim, .rows = head.slots});
  for (std::size_t p = 0; p < pages; ++p) {
    const std::size_t from = p < kPattern ? p : (p * 37 + p / kPattern) % kPattern;
    std::memcpy(k_.data() + p * page_bytes, k.data() + from * page_bytes, page_bytes);
    std::memcpy(v_.data() + p * page_bytes, v.data() + from * page_bytes, page_bytes);
  }
}

KernelCase attend_case(const SharedCache& cache, bool gathered, int threads) {
  const KernelShape& shape = cache->shape;
  const int entries = gathered ? static_cast<int>(cache->lists.front().size()) : cache->tokens;
  const int per_layer = items_of_layer(shape, entries);
  const std::size_t size = kernels::partial_floats(shape.group, shape.format.dim);
  using Items = LayerItems<kernels::AttendItem>;
  const auto all = std::make_shared<Items>(Items{per_layer, threads, {}, {}});
  all->results.resize(static_cast<std::size_t>(per_layer * cache->layers) * size);
  for (int i = 0; i < per_layer * cache->layers; ++i) {
    auto& item = all->items.emplace_back(range_of_head<kernels::AttendItem>(*cache, entries, i));
    const auto head = static_cast<std::size_t>(item.head - cache->views.data());
    item.list = gathered ? cache->lists[head].data() : nullptr;
    item.partial = all->results.data() + static_cast<std::size_t>(i) * size;
  }
  all->link();
  KernelCase result;
  result.name = kernel_label(gathered ? "gathered" : "dense", shape);
  result.layers = cache->layers;
  result.items = threads * cache->layers;
  result.bytes = static_cast<double>(shape.heads) * entries *
                 (2.0 * static_cast<double>(shape.format.read_bytes()) + (gathered ? sizeof(std::int32_t) : 0));
  result.flops = 4.0 * shape.heads * entries * shape.group * shape.format.dim;
  result.run = [=](int share) {
    all->run(share, [&](const kernels::AttendItem& item) { kernels::attend(cache->shape.format, item); });
  };
  result.check = [=, name = result.name] {
    double error = 0;
    std::vector<float> want(size);
    const auto check_item = [&](std::size_t i) {
      kernels::AttendItem item = all->items[i];
      kernels::attend(cache->shape.format, item);
      item.partial = want.data();
      kernels::ref::attend(cache->shape.format, item);
      error = std::max(error, expect_near({all->results.data() + i * size, size}, want, kAttendError, name));
    };
    for (std::size_t i = 0; i < static_cast<std::size_t>(per_layer); ++i) check_item(i);
    check_item(all->items.size() - 1);
    return error;
  };
  return result;
}

std::string kernel_label(const std::string& what, const KernelShape& shape) {
  return fmt::format("{} {} h{} g{} d{}", what, name(shape.format.type), shape.heads, shape.group, shape.format.dim);
}

double expect_near(std::span<const float> got, std::span<const float> want, double allowed, const std::string& name) {
  double most = 0, difference = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    const bool near = std::fabs(got[i] - want[i]) <= allowed;
    if (!near) check(near, fmt::format("{}: {} where the reference has {}, at {}", name, got[i], want[i], i));
    most = std::max(most, static_cast<double>(std::fabs(want[i])));
    difference = std::max(difference, static_cast<double>(std::fabs(got[i] - want[i])));
  }
  return difference == 0 ? 0 : difference / std::max(most, 1e-30);
}

KernelTimes measure_cases(const std::vector<KernelCase>& cases, int threads, int repetitions,
                          const std::function<bool()>& on_round) {
  KernelTimes times;
  std::vector<double> errors;
  for (const KernelCase& c : cases) errors.push_back(c.check());
  ThreadTeam team(threads);
  Stream stream;
  struct Samples {
    std::vector<double> s, fraction;
  };
  std::vector<Samples> samples(cases.size());
  std::vector<double> bandwidths;
  for (int round = -1; round < repetitions; ++round) {  // the first round warms up
    if (round >= 0 && on_round && !on_round()) return times;
    for (std::size_t c = 0; c < cases.size(); ++c) {
      const double bandwidth = stream.bandwidth(team);
      const auto start = ThreadTeam::Clock::now();
      team.share(cases[c].items, cases[c].run);
      const double taken = std::chrono::duration<double>(ThreadTeam::Clock::now() - start).count() / cases[c].layers;
      if (round < 0) continue;
      bandwidths.push_back(bandwidth);
      samples[c].s.push_back(taken);
      samples[c].fraction.push_back(cases[c].bytes / taken / bandwidth);
    }
  }
  if (bandwidths.empty()) return times;
  times.read_bandwidth = median(bandwidths);
  const auto [slowest, fastest] = std::minmax_element(bandwidths.begin(), bandwidths.end());
  times.stream_median_s = static_cast<double>(Stream::kBytes) / times.read_bandwidth;
  times.stream_least_s = static_cast<double>(Stream::kBytes) / *fastest;
  times.stream_most_s = static_cast<double>(Stream::kBytes) / *slowest;
  for (std::size_t c = 0; c < cases.size(); ++c) {
    const auto [least, most] = std::minmax_element(samples[c].s.begin(), samples[c].s.end());
    KernelRow row{cases[c].name, median(samples[c].s), *least, *most, cases[c].bytes, 0, 0, errors[c]};
    row.fraction = median(samples[c].fraction);
    row.gflops = cases[c].flops / row.median_s / 1e9;
    times.rows.push_back(std::move(row));
  }
  return times;
}

}  // namespace glimpse::evaluate
