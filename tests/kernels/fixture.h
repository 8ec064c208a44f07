// What the kernel tests share: one random generator seeded by the test's name, a head of the cache in scattered pages,
// outputs between guard zones and poisoned with NaN, and a run of every instruction set that this machine has.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "glimpse/kernels/attention.h"
#include "glimpse/kernels/ref/attention_ref.h"
#include "hwy/targets.h"

namespace glimpse::kernels::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::uint64_t seed_of_test() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::uint64_t hash = 1469598103934665603ULL;
  for (const char c : std::string(info->test_suite_name()) + "." + info->name()) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

/// `size` elements between two guard zones. Poisoned with NaN (floats) or a large negative number.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::size_t size) : size_(size), all_(size + 2 * kGuard) {
    std::memset(static_cast<void*>(all_.data()), 0xff, all_.size() * sizeof(T));
  }
  T* data() { return all_.data() + kGuard; }
  std::span<T> span() { return {data(), size_}; }
  T operator[](std::size_t i) const { return all_[kGuard + i]; }
  std::size_t size() const { return size_; }

  bool guards_intact() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(all_.data());
    const std::size_t guard = kGuard * sizeof(T);
    const std::size_t end = all_.size() * sizeof(T);
    return std::all_of(bytes, bytes + guard, [](unsigned char b) { return b == 0xff; }) &&
           std::all_of(bytes + end - guard, bytes + end, [](unsigned char b) { return b == 0xff; });
  }

 private:
  static constexpr std::size_t kGuard = 64;
  std::size_t size_;
  std::vector<T> all_;
};

/// A test for every instruction set: KernelTest::target() is forced while the body runs.
class KernelTest : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    random_.seed(seed_of_test());
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  float normal() { return std::normal_distribution<float>()(random_); }
  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  std::vector<float> normals(std::size_t count, float scale = 1) {
    std::vector<float> values(count);
    for (float& v : values) v = scale * normal();
    return values;
  }

  std::mt19937_64 random_;
};

/// The instruction sets of this machine that the kernels are built for, the widest first; the last is what runs
/// everywhere. A build with a sanitizer has the widest alone.
inline std::vector<std::int64_t> machine_targets() {
  std::vector<std::int64_t> targets;
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4}) {
    if ((hwy::SupportedTargets() & target) != 0) targets.push_back(target);
  }
  targets.push_back(HWY_STATIC_TARGET == HWY_EMU128 ? HWY_EMU128 : HWY_SCALAR);
#if defined(GLIMPSE_WIDEST_KERNELS_ALONE)
  targets.resize(1);
#endif
  return targets;
}

inline std::string target_label(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

/// A head of `slots` slots in pages that lie in random order (in runs of `run`), everything unused filled with NaN.
class TestHead {
 public:
  TestHead(KvFormat kv_format, std::int32_t slots, std::mt19937_64& random, int run = 1)
      : format(kv_format), slots_(slots) {
    const std::size_t used = (static_cast<std::size_t>(slots) + kPageTokens - 1) / kPageTokens;
    const std::size_t runs = (used + static_cast<std::size_t>(run) - 1) / static_cast<std::size_t>(run) + 2;
    std::vector<PageId> order(runs);
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t p = 0; p < used; ++p) {
      const auto r = static_cast<std::size_t>(run);
      pages.push_back(order[p / r] * static_cast<PageId>(run) + static_cast<PageId>(p % r));
    }
    const std::size_t bytes = runs * static_cast<std::size_t>(run) * format.page_bytes();
    k_bytes.assign(bytes, std::byte{0xff});
    v_bytes.assign(bytes, std::byte{0xff});
  }

  /// Random rows of the given size.
  void fill(std::mt19937_64& random, float size = 1) {
    std::normal_distribution<float> normal;
    const std::size_t count = static_cast<std::size_t>(slots_) * static_cast<std::size_t>(format.dim);
    k_rows.resize(count);
    v_rows.resize(count);
    for (float& x : k_rows) x = size * normal(random);
    for (float& x : v_rows) x = size * normal(random);
    store();
  }
  void store() {
    const HeadView head = view();
    ref::append(format, {.head = &head,
                         .k = k_rows.data(),
                         .v = v_rows.data(),
                         .row_stride = static_cast<std::size_t>(format.dim),
                         .slot = 0,
                         .rows = slots_});
  }
  /// Frees each slot with the given chance; its bytes become NaN, so that reading it shows.
  void free_some(std::mt19937_64& random, double chance) {
    positions.resize(static_cast<std::size_t>(slots_));
    std::uniform_real_distribution<double> uniform;
    const HeadView head = view();
    for (std::int32_t slot = 0; slot < slots_; ++slot) {
      const bool freed = uniform(random) < chance;
      positions[static_cast<std::size_t>(slot)] = freed ? -1 : slot;
      if (!freed) continue;
      std::memset(head.row_of(k_bytes.data(), slot, format), 0xff, format.row_bytes());
      std::memset(head.row_of(v_bytes.data(), slot, format), 0xff, format.row_bytes());
    }
  }
  HeadView view() {
    return {.k_plane = k_bytes.data(),
            .v_plane = v_bytes.data(),
            .pages = pages.data(),
            .positions = positions.empty() ? nullptr : positions.data(),
            .slots = slots_};
  }
  /// Largest |x| of a stored row of K (of V).
  double largest_k_norm() const { return largest_norm(k_rows); }
  double largest_v() const {
    double largest = 0;
    for (const float x : v_rows) largest = std::max(largest, std::fabs(static_cast<double>(x)));
    return largest;
  }

  KvFormat format;
  std::vector<float> k_rows, v_rows;
  std::vector<std::int32_t> positions;

 private:
  double largest_norm(const std::vector<float>& rows) const {
    double largest = 0;
    for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(format.dim)) {
      double sum = 0;
      for (int i = 0; i < format.dim; ++i) {
        sum += static_cast<double>(rows[at + static_cast<std::size_t>(i)]) * rows[at + static_cast<std::size_t>(i)];
      }
      largest = std::max(largest, std::sqrt(sum));
    }
    return largest;
  }

  std::int32_t slots_;
  std::vector<PageId> pages;
  std::vector<std::byte> k_bytes, v_bytes;
};

/// Bounds on what f32 arithmetic may differ by from double, from norms and the type's epsilon.
struct Tolerance {
  double score = 0;
  double out = 0;
};

inline Tolerance tolerance(const TestHead& head, std::span<const float> query, float scale) {
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  const int dim = head.format.dim;
  double largest_query = 0;
  for (std::size_t at = 0; at < query.size(); at += static_cast<std::size_t>(dim)) {
    double sum = 0;
    for (int i = 0; i < dim; ++i) {
      sum += static_cast<double>(query[at + static_cast<std::size_t>(i)]) * query[at + static_cast<std::size_t>(i)];
    }
    largest_query = std::max(largest_query, std::sqrt(sum));
  }
  Tolerance result;
  // A sum of dim products in chains of at least dim / 16 (one lane: dim) roundings each, never all the same way.
  result.score = 4 * std::sqrt(dim) * kEpsilon * largest_query * head.largest_k_norm() * std::fabs(scale) + 1e-30;
  // An error e in all scores moves a weighted mean of values by at most 2 e times the largest of them.
  result.out = (2 * result.score + 64 * kEpsilon) * head.largest_v() + 1e-30;
  return result;
}

}  // namespace glimpse::kernels::test
