// How the prefill kernels divide their workspace: one tile of query vectors, one tile of keys. Views into the
// caller's bytes; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "glimpse/kernels/cpu/prefill_bf16.h"

namespace glimpse::kernels {

constexpr int kTileLanes = 192;  ///< query vectors of a tile; whole panels for every vector length
constexpr int kTileKeys = kBf16Keys;
constexpr std::size_t kChunk = 8;  ///< values of V of one key that lie together

struct PrefillSpace {
  float* queries;  ///< [panel, d, lane] times scale and log2(e); pairs of bf16 with bf16 products
  float* out;      ///< [panel, d, lane]; column sums: [key, lane of a vector]
  float* scores;   ///< [key, lane] of one panel
  float* keys;     ///< [key, d]
  float* values;   ///< [d / 8, key, 8]
  float* largest;  ///< [panel * lane], as are the following; column sums: log-sum-exp in powers of two
  float* sum;      ///< column sums: weight of the row
  float* fade;
  std::int32_t* limit;  ///< last visible slot
};

inline std::size_t prefill_floats(std::size_t dim) {
  return 2 * dim * kTileLanes + kTileKeys * (kBf16Lanes + 2 * dim) + 4 * kTileLanes;
}

inline PrefillSpace carve_prefill(std::span<std::byte> bytes, std::size_t dim) {
  auto* at = reinterpret_cast<float*>((reinterpret_cast<std::uintptr_t>(bytes.data()) + 63) / 64 * 64);
  const auto take = [&](std::size_t floats) {
    float* taken = at;
    at += floats;
    return taken;
  };
  PrefillSpace space{};
  space.queries = take(dim * kTileLanes);
  space.out = take(dim * kTileLanes);
  space.scores = take(std::size_t{kTileKeys} * kBf16Lanes);
  space.keys = take(kTileKeys * dim);
  space.values = take(kTileKeys * dim);
  space.largest = take(kTileLanes);
  space.sum = take(kTileLanes);
  space.fade = take(kTileLanes);
  space.limit = reinterpret_cast<std::int32_t*>(take(kTileLanes));
  return space;
}

}  // namespace glimpse::kernels
