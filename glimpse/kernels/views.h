// What kernels see of the KV cache: raw planes, page tables, slots. Nothing here owns memory; the cache
// (glimpse/kv) does, and keeps it alive and unmoved for the length of a forward pass. Any thread may read;
// one thread at a time may write a given page.
//
// Layout. A page holds kPageTokens slots of one (layer, KV head): K as [slot, dim] in the K plane, V as
// [slot, dim] in the V plane at the same page number. q8_0 pages end with [slot] float scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/base/dtype.h"

namespace glimpse::kernels {

using PageId = std::uint32_t;

inline constexpr int kPageShift = 4;
inline constexpr int kPageTokens = 1 << kPageShift;

/// The largest head dimension that kernels take; every one is a multiple of 8.
inline constexpr int kMaxHeadDim = 256;

/// Element type and row length of one cache, the same for K and V.
struct KvFormat {
  KvType type = KvType::bf16;
  int dim = 0;  ///< d, head dimension; a multiple of 8 up to kMaxHeadDim

  std::size_t row_bytes() const { return glimpse::row_bytes(type, dim); }
  std::size_t scale_offset() const { return row_bytes() * kPageTokens; }
  std::size_t page_bytes() const { return scale_offset() + (type == KvType::q8_0 ? sizeof(float) * kPageTokens : 0); }
  /// What reading one row of K or V costs, its scale included.
  std::size_t read_bytes() const { return row_bytes() + (type == KvType::q8_0 ? sizeof(float) : 0); }
};

/// One (sequence, layer, KV head). Slot i is slot i % kPageTokens of page pages[i / kPageTokens].
struct HeadView {
  std::byte* k_plane = nullptr;
  std::byte* v_plane = nullptr;
  const PageId* pages = nullptr;            ///< [pages]; no kernel is asked for one that waits (kv::kNoPage)
  const std::int32_t* positions = nullptr;  ///< [slots] logical position, -1 a freed slot; null: slot == position
  std::int32_t slots = 0;                   ///< slots in use, freed ones included

  std::byte* page_of(std::byte* plane, std::int32_t slot, const KvFormat& format) const {
    return plane + static_cast<std::size_t>(pages[slot >> kPageShift]) * format.page_bytes();
  }
  std::byte* row_of(std::byte* plane, std::int32_t slot, const KvFormat& format) const {
    return page_of(plane, slot, format) + static_cast<std::size_t>(slot & (kPageTokens - 1)) * format.row_bytes();
  }
};

}  // namespace glimpse::kernels
