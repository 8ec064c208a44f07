#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/index_assign.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/vec-inl.h"
#include "glimpse/kernels/index.h"

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

using Tag = hn::ScalableTag<float>;

/// A panel is the centroids of kVectors vectors, one a lane, so that products need no sum over lanes. Four rows by
/// three vectors are 12 sums; with three vectors and a broadcast they are all 16 registers of AVX2.
constexpr std::size_t kVectors = 3;
constexpr std::size_t kRows = 4;
constexpr std::size_t kMostPanel = 3 * 16;
constexpr std::size_t kTileFloats = std::size_t{32} << 10;

/// Writes centroids [from, from + panel) as [dim, panel]; behind the last one stand zeros.
void pack(const AssignItem& item, std::size_t from, std::size_t panel, float* HWY_RESTRICT packed) {
  const auto dim = static_cast<std::size_t>(item.dim);
  const std::size_t count = std::min(panel, static_cast<std::size_t>(item.clusters) - from);
  std::fill(packed, packed + dim * panel, 0.0F);
  for (std::size_t c = 0; c < count; ++c) {
    const float* centroid = item.centroids + (from + c) * dim;
    for (std::size_t i = 0; i < dim; ++i) packed[i * panel + c] = centroid[i];
  }
}

/// One panel for kCount rows from `first` on: raises the best of each row where the panel has a larger product.
template <std::size_t kCount>
HWY_INLINE void assign_step(const AssignItem& item, const float* HWY_RESTRICT packed, std::size_t first,
                            std::size_t from) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t panel = kVectors * lanes;
  const auto dim = static_cast<std::size_t>(item.dim);
  hn::Vec<Tag> sums[kCount][kVectors];
  for (std::size_t r = 0; r < kCount; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::Zero(d);
  }
  const float* rows = item.rows + first * dim;
  for (std::size_t i = 0; i < dim; ++i) {
    const auto a = hn::LoadU(d, packed + i * panel);
    const auto b = hn::LoadU(d, packed + i * panel + lanes);
    const auto c = hn::LoadU(d, packed + i * panel + 2 * lanes);
    for (std::size_t r = 0; r < kCount; ++r) {
      const auto value = hn::Set(d, rows[r * dim + i]);
      sums[r][0] = hn::MulAdd(value, a, sums[r][0]);
      sums[r][1] = hn::MulAdd(value, b, sums[r][1]);
      sums[r][2] = hn::MulAdd(value, c, sums[r][2]);
    }
  }
  const std::size_t count = std::min(panel, static_cast<std::size_t>(item.clusters) - from);
  HWY_ALIGN float products[kMostPanel];
  for (std::size_t r = 0; r < kCount; ++r) {
    float& best = item.products[first + r];
    const auto most = hn::Max(sums[r][0], hn::Max(sums[r][1], sums[r][2]));
    // Most panels hold nothing better. Zeros behind the last centroid may look it, and are left out below.
    if (hn::AllFalse(d, hn::Gt(most, hn::Set(d, best)))) continue;
    for (std::size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[r][v], d, products + v * lanes);
    for (std::size_t c = 0; c < count; ++c) {
      if (products[c] > best) {
        best = products[c];
        item.nearest[first + r] = static_cast<std::int32_t>(from + c);
      }
    }
  }
}

void assign_target(const AssignItem& item, float* packed) {
  const Tag d;
  const std::size_t panel = kVectors * hn::Lanes(d);
  const auto count = static_cast<std::size_t>(item.count);
  std::fill(item.nearest, item.nearest + count, 0);
  std::fill(item.products, item.products + count, kMinusInfinity);
  // Rows that stay in L2 while all panels pass: packing a panel anew for each tile is 1 % of the products.
  const std::size_t tile =
      std::max<std::size_t>(kRows, kTileFloats / static_cast<std::size_t>(item.dim) / kRows * kRows);
  for (std::size_t begin = 0; begin < count; begin += tile) {
    const std::size_t end = std::min(count, begin + tile);
    for (std::size_t from = 0; from < static_cast<std::size_t>(item.clusters); from += panel) {
      pack(item, from, panel, packed);
      std::size_t r = begin;
      for (; r + kRows <= end; r += kRows) assign_step<kRows>(item, packed, r, from);
      for (; r < end; ++r) assign_step<1>(item, packed, r, from);
    }
  }
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(assign_target);

std::size_t assign_workspace(int dim) {
  constexpr std::size_t kWidestPanel = 3 * 16;
  constexpr std::size_t kSlack = alignof(float);
  return static_cast<std::size_t>(dim) * kWidestPanel * sizeof(float) + kSlack;
}

void assign_rows(const AssignItem& item, std::span<std::byte> workspace) {
  check(item.clusters > 0 && item.dim > 0, "assign_rows needs a centroid");
  check(workspace.size() >= assign_workspace(item.dim), "assign_rows needs more workspace");
  const auto at = reinterpret_cast<std::uintptr_t>(workspace.data());
  const std::uintptr_t aligned = (at + alignof(float) - 1) / alignof(float) * alignof(float);
  HWY_DYNAMIC_DISPATCH(assign_target)(item, reinterpret_cast<float*>(aligned));
}

}  // namespace glimpse::kernels
#endif
