// What the cases of the attention benchmark share: a cache laid out as the engine's, and what one case is. A cache
// owns its planes and is const once made; cases hold it by a shared pointer.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "glimpse/base/buffer.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::bench {

inline constexpr std::size_t kCacheBytes = std::size_t{192} << 20;  ///< several times the last-level cache
inline constexpr int kRunPages = 16;
inline constexpr int kChosen = 2048;

struct Shape {
  kernels::KvFormat format;
  int heads = 3;
  int group = 3;
};

/// A cache of as many layers as fill kCacheBytes, laid out as the engine's: in each plane runs of 16 pages, the run of
/// head 0, of head 1, ..., then the next runs.
class BenchCache {
 public:
  BenchCache(const Shape& cache_shape, int length) : shape(cache_shape), tokens(length) {
    const auto runs =
        static_cast<std::size_t>((tokens + kRunPages * kernels::kPageTokens - 1) / (kRunPages * kernels::kPageTokens));
    const auto heads = static_cast<std::size_t>(shape.heads);
    const std::size_t layer_pages = runs * heads * kRunPages;
    const std::size_t page_bytes = shape.format.page_bytes();
    layers = static_cast<int>(std::max<std::size_t>(1, kCacheBytes / (2 * layer_pages * page_bytes)));
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
    for (auto& list : lists) {
      std::sample(all.begin(), all.end(), std::back_inserter(list), kChosen, random);
    }
  }

  float scale() const { return 1.0F / std::sqrt(static_cast<float>(shape.format.dim)); }
  const float* query_of(std::size_t head) const {
    return query.data() + head * static_cast<std::size_t>(shape.group * shape.format.dim);
  }

  Shape shape;
  int tokens;
  int layers = 0;
  std::vector<kernels::HeadView> views;  ///< [layer, head]
  std::vector<float> query;              ///< [layer, head, g, d]
  std::vector<std::vector<std::int32_t>> lists;

 private:
  /// 1,024 random rows again and again: random numbers are slower than everything that is measured.
  void fill(std::size_t pages) {
    constexpr std::size_t kPattern = 64;
    const auto dim = static_cast<std::size_t>(shape.format.dim);
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> rows(kPattern * kernels::kPageTokens * dim);
    for (float& x : rows) x = normal(random);
    std::vector<kernels::PageId> table(kPattern);
    for (std::size_t p = 0; p < kPattern; ++p) table[p] = static_cast<kernels::PageId>(p);
    const kernels::HeadView head{.k_plane = k_.data(),
                                 .v_plane = v_.data(),
                                 .pages = table.data(),
                                 .slots = static_cast<std::int32_t>(kPattern * kernels::kPageTokens)};
    kernels::append(shape.format,
                    {.head = &head, .k = rows.data(), .v = rows.data(), .row_stride = dim, .rows = head.slots});
    const std::size_t page_bytes = shape.format.page_bytes();
    for (std::size_t p = kPattern; p < pages; ++p) {
      const std::size_t from = (p * 37 + p / kPattern) % kPattern;
      std::memcpy(k_.data() + p * page_bytes, k_.data() + from * page_bytes, page_bytes);
      std::memcpy(v_.data() + p * page_bytes, v_.data() + from * page_bytes, page_bytes);
    }
  }

  HostBuffer k_, v_;
  std::vector<std::vector<kernels::PageId>> tables_;
};

/// One thing to measure: `items` independent calls that together are `layers` layers.
struct Case {
  std::string name;
  int layers = 1;
  int items = 0;
  double bytes = 0;  ///< of one layer
  double flops = 0;  ///< of one layer
  std::function<void(int)> run;
  std::function<void()> check;
};

inline void expect_near(std::span<const float> got, std::span<const float> want, double allowed,
                        const std::string& name) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    check(got[i] == want[i] || std::fabs(got[i] - want[i]) <= allowed,
          fmt::format("{}: {} where the reference has {}, at {}", name, got[i], want[i], i));
  }
}

/// How far outputs of prompt rows may be from the reference's: queries and weights are rounded to bf16 where the
/// processor multiplies those.
inline double prefill_allowed(KvType type) {
  return type == KvType::bf16 && std::string(kernels::instruction_set()).ends_with("bf16") ? 2e-2 : 2e-5;
}

/// This thread's workspace of the prefill kernels.
inline std::span<std::byte> prefill_space(const Shape& shape) {
  thread_local HostBuffer buffer;
  const std::size_t need = kernels::prefill_workspace(shape.format, shape.group);
  if (buffer.size() < need) buffer = HostBuffer(need);
  return {buffer.data(), buffer.size()};
}

inline std::string label(const std::string& what, const Shape& shape) {
  return fmt::format("{} {} h{} g{} d{}", what, name(shape.format.type), shape.heads, shape.group, shape.format.dim);
}

using Shared = std::shared_ptr<BenchCache>;

}  // namespace glimpse::bench
