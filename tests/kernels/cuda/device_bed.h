// A case of operations_cases.h in the memory of a device: its planes, page tables and tables, and tests that are
// skipped where there is no device.
#pragma once

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "../operations_cases.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/ref/operations.h"

namespace glimpse::kernels::cuda::test {

using kernels::test::OperationsBed;
using kernels::test::OperationsCase;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// What 16-bit halves of queries and weights leave of f32 sums of up to 256 products of normal numbers.
inline constexpr double kNear = 6e-5;

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::vector<Device> found = devices();
    if (found.empty()) GTEST_SKIP() << "no CUDA device, or a build without CUDA";
    stream_ = std::make_unique<Stream>(found.front().number);
    operations_ = make_operations(*stream_);
  }

  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Operations<Place::device>> operations_;
  ref::Operations reference_;
};

/// The memory of a host's case on the device. The views' pages and positions must lie in the bed's own vectors.
class DeviceBed {
 public:
  DeviceBed(Stream& stream, const OperationsBed& bed)
      : of(bed),
        stream_(stream),
        k_(stream, bed.k_plane),
        v_(stream, bed.v_plane),
        pages_(stream, bed.pages),
        positions_(stream, bed.positions),
        sequence_(stream, bed.sequence),
        behind_(stream, bed.behind),
        q_(stream, bed.q) {
    std::vector<HeadView> views = bed.views;
    for (HeadView& view : views) {
      view.k_plane = k_.pointer().raw();
      view.v_plane = v_.pointer().raw();
      view.pages = pages_.pointer().raw() + (view.pages - bed.pages.data());
      if (view.positions != nullptr) {
        view.positions = positions_.pointer().raw() + (view.positions - bed.positions.data());
      }
    }
    views_ = Array<HeadView>(stream, views);
  }

  KvTable<Place::device> cache() const {
    return {of.format, views_.constant(), of.cache().sequences, of.of.kv_heads, fresh, longest};
  }
  RowTable<Place::device> rows() const {
    return {sequence_.constant(), behind_.constant(), static_cast<int>(of.rows())};
  }
  Pointer<const float, Place::device> q() const { return q_.constant(); }
  std::vector<std::byte> k_bytes() const { return k_.values(); }
  std::vector<std::byte> v_bytes() const { return v_.values(); }

  const OperationsBed& of;
  int fresh = -1, longest = 0;  ///< of cache()

 private:
  Stream& stream_;
  Array<std::byte> k_, v_;
  Array<PageId> pages_;
  Array<std::int32_t> positions_, sequence_, behind_;
  Array<float> q_;
  Array<HeadView> views_;
};

inline void expect_near(const std::vector<float>& got, const std::vector<float>& want, double allowed) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || (std::isnan(got[i]) && std::isnan(want[i]))) continue;
    ASSERT_NEAR(got[i], want[i], allowed) << "at " << i;
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// The shared cases, and what only these kernels have: other instances, and more segments than a block lists at a time.
inline std::vector<OperationsCase> cases() {
  std::vector<OperationsCase> all = kernels::test::operations_cases();
  for (const int dim : {64, 96, 128, 256}) {
    for (const int group : {4, 16}) {
      all.push_back({.name = "dim " + std::to_string(dim) + ", group " + std::to_string(group),
                     .dim = dim,
                     .group = group,
                     .lengths = {1000, 37, 256},
                     .behind = {1, 2},
                     .freed = 0.1});
    }
  }
  OperationsCase many{.name = "many segments", .kv_heads = 8, .group = 4, .lengths = {}};
  for (int i = 0; i < 200; ++i) many.lengths.push_back(5 + i * 7 % 61);
  all.push_back(many);
  all.push_back({.name = "long beside short", .dim = 128, .group = 4, .lengths = {20000, 3, 500}, .behind = {1, 3}});
  return all;
}

/// The types of a cache that the device takes.
inline constexpr KvType kTypes[] = {KvType::bf16, KvType::f16, KvType::q8_0};

/// Calls `body` with each case in each type.
template <class Body>
void each_case(const Body& body, std::span<const KvType> types = kTypes) {
  for (const KvType type : types) {
    for (const OperationsCase& c : cases()) {
      SCOPED_TRACE(std::string(name(type)) + ", " + c.name);
      OperationsBed bed(c, type, 17);
      body(bed);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace glimpse::kernels::cuda::test
