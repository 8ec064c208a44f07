// The tables of the host that say which cache a row reads, in the device's memory or brought to shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/cuda/arguments.h"
#include "glimpse/kernels/cuda/copies.cuh"
#include "glimpse/kernels/cuda/mma.cuh"

namespace glimpse::kernels::cuda {

/// Copies a table of words to shared memory at `room`, by all threads; the first byte after it. It is there when the
/// copies are waited for.
template <class T>
__device__ inline std::byte* bring_table(std::byte* room, const T* table, int count) {
  constexpr int kWord = 4;
  static_assert(sizeof(T) % kWord == 0);
  const std::uint32_t to = shared_address(room);
  const auto* const from = reinterpret_cast<const std::byte*>(table);
  const int bytes = count * static_cast<int>(sizeof(T));
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) * kWord; i < bytes; i += static_cast<int>(blockDim.x) * kWord) {
    copy_4_bytes(to + static_cast<std::uint32_t>(i), from + i);
  }
  return room + bytes;
}

/// Which cache each row reads, and how much of it. Shared memory holds the views, the sequences, then the slots behind.
struct RowTables {
  const HeadView* views;
  const std::int32_t* sequence;
  const std::int32_t* behind;

  __device__ explicit RowTables(const Cache& cache)
      : views(cache.views), sequence(cache.sequence), behind(cache.behind) {}
  /// Where bring() has put them.
  __device__ RowTables(const Cache& cache, const std::byte* room)
      : views(reinterpret_cast<const HeadView*>(room)),
        sequence(reinterpret_cast<const std::int32_t*>(room + cache.sequences * cache.kv_heads * sizeof(HeadView))),
        behind(sequence + cache.rows) {}
  __device__ static int bytes(const Cache& cache) {
    return cache.sequences * cache.kv_heads * static_cast<int>(sizeof(HeadView)) + cache.rows * 8;
  }
  __device__ static std::byte* bring(const Cache& cache, std::byte* room) {
    room = bring_table(room, cache.views, cache.sequences * cache.kv_heads);
    room = bring_table(room, cache.sequence, cache.rows);
    return bring_table(room, cache.behind, cache.rows);
  }
};

}  // namespace glimpse::kernels::cuda
