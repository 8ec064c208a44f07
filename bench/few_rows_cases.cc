#include "bench/few_rows_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "bench/prefill_cases.h"
#include "glimpse/base/error.h"
#include "glimpse/kernels/ref/attention_ref.h"

namespace glimpse::bench {
namespace {

using namespace kernels;  // NOLINT(google-build-using-namespace): the whole file is about them

/// Ranges of keys of every head and layer, which the caller combines.
class Ranges {
 public:
  Ranges(evaluate::SharedCache cache, const FewRows& rows) : cache_(std::move(cache)), rows_(rows) {
    const evaluate::KernelShape& shape = cache_->shape;
    width_ = static_cast<std::size_t>(shape.group * shape.format.dim);
    queries_ = rows.rows * shape.group;
    result_ = kRange / kSplitTokens * partial_floats(queries_, shape.format.dim);
    std::mt19937 random(13);
    std::normal_distribution<float> normal;
    query_.resize(static_cast<std::size_t>(rows.rows) * width_);
    for (float& x : query_) x = normal(random);
    results_.resize(static_cast<std::size_t>(per_layer() * cache_->layers) * result_);
  }

  int per_layer() const { return (cache_->tokens + kRange - 1) / kRange * cache_->shape.heads; }

  void run(int i) {
    if (rows_.verify) {
      attend_rows(cache_->shape.format, verified(i), space());
    } else {
      prefill(cache_->shape.format, prompt(i), prefill_space(cache_->shape));
    }
  }

  double check_item(int i, const std::string& name) {
    const evaluate::KernelShape& shape = cache_->shape;
    run(i);
    std::vector<float> want(result_);
    if (!rows_.verify) {
      PrefillItem item = prompt(i);
      const auto outputs = static_cast<std::size_t>(queries_ * shape.format.dim);
      const std::span<const float> got(item.out, outputs + static_cast<std::size_t>(queries_));
      item.out = want.data();
      item.lse = want.data() + outputs;
      ref::prefill(shape.format, item);
      const double allowed = prefill_allowed(shape.format.type);
      evaluate::expect_near(got.subspan(outputs), std::span(want).subspan(outputs, got.size() - outputs),
                            std::max(allowed, 1e-4), name);
      return evaluate::expect_near(got.first(outputs), std::span(want).first(outputs), allowed, name);
    }
    AttendRowsItem item = verified(i);
    const auto parts = static_cast<std::size_t>((item.end - item.begin + kSplitTokens - 1) / kSplitTokens);
    const std::span<const float> got(item.partial, parts * partial_floats(queries_, shape.format.dim));
    item.partial = want.data();
    ref::attend_rows(shape.format, item);
    const double error = evaluate::expect_near(got, std::span(want).first(got.size()), 1e-4, name);
    ref::attend_rows(shape.format, item, attend);
    check(std::memcmp(want.data(), got.data(), got.size_bytes()) == 0, name + ": other bits than alone");
    return error;
  }

 private:
  static constexpr int kRange = 2048;

  int begin(int i) const { return i % per_layer() / cache_->shape.heads * kRange; }
  int end(int i) const { return std::min(cache_->tokens, begin(i) + kRange); }
  const HeadView& head(int i) const {
    const int heads = cache_->shape.heads;
    return cache_->views[static_cast<std::size_t>(i / per_layer() * heads + i % heads)];
  }
  float* result(int i) { return results_.data() + static_cast<std::size_t>(i) * result_; }

  PrefillItem prompt(int i) {
    float* out = result(i);
    return {.head = &head(i),
            .query = query_.data(),
            .query_stride = width_,
            .out = out,
            .out_stride = width_,
            .group = cache_->shape.group,
            .scale = cache_->scale(),
            .first_slot = cache_->tokens - rows_.rows,
            .rows = rows_.rows,
            .begin = begin(i),
            .end = end(i),
            .lse = out + queries_ * cache_->shape.format.dim};
  }

  AttendRowsItem verified(int i) {
    return {.head = &head(i),
            .query = query_.data(),
            .query_stride = width_,
            .group = cache_->shape.group,
            .rows = rows_.rows,
            .scale = cache_->scale(),
            .first_slot = cache_->tokens - rows_.rows,
            .begin = begin(i),
            .end = end(i),
            .partial = result(i)};
  }

  /// This thread's workspace.
  std::span<std::byte> space() const {
    thread_local std::vector<std::byte> bytes;
    const std::size_t need = attend_rows_workspace(cache_->shape.format, queries_);
    if (bytes.size() < need) bytes.resize(need);
    return bytes;
  }

  evaluate::SharedCache cache_;
  FewRows rows_;
  int queries_ = 0;
  std::size_t width_ = 0;   ///< floats of one row's queries of a head
  std::size_t result_ = 0;  ///< floats of one item's results, at most
  std::vector<float> query_, results_;
};

}  // namespace

std::vector<FewRows> few_rows(const evaluate::KernelShape& shape, int tokens) {
  if (shape.format.type != KvType::bf16) return {};
  std::vector<FewRows> made;
  for (const int rows : {2, 3, kFewRows}) made.push_back({rows, true});
  for (const int rows : {kFewRows, 16}) made.push_back({rows, false});
  std::erase_if(made, [&](const FewRows& few) { return few.rows >= tokens; });
  return made;
}

std::string few_rows_name(const evaluate::KernelShape& shape, const FewRows& rows) {
  return evaluate::kernel_label(fmt::format("{} {} rows", rows.verify ? "verify" : "few prompt", rows.rows), shape);
}

evaluate::KernelCase few_rows_case(const evaluate::SharedCache& cache, const FewRows& rows, int threads) {
  const evaluate::KernelShape& shape = cache->shape;
  const auto ranges = std::make_shared<Ranges>(cache, rows);
  evaluate::KernelCase result;
  result.name = few_rows_name(shape, rows);
  result.layers = cache->layers;
  result.items = threads * cache->layers;
  result.bytes = 2.0 * shape.heads * cache->tokens * static_cast<double>(shape.format.read_bytes());
  result.flops = 4.0 * shape.heads * cache->tokens * shape.group * rows.rows * shape.format.dim;
  result.run = [=](int share) {
    const int all = ranges->per_layer();
    const int first = share / threads * all;
    const int number = share % threads;
    for (int i = number * all / threads; i < (number + 1) * all / threads; ++i) ranges->run(first + i);
  };
  result.check = [=, name = result.name] {
    return std::max(ranges->check_item(0, name), ranges->check_item(ranges->per_layer() - 1, name));
  };
  return result;
}

}  // namespace glimpse::bench
