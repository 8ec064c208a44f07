// What ShadowKV's factors of a layer's keys are made of (section 4): the keys before RoPE, X [tokens, G d], their X^T
// X, and products of X with directions. A caller takes some tokens at a time.
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. The same
// keys give the same bits. Errors: as kernels/cuda/operations.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

struct KeysBeforeRopeOp {
  KvFormat format;
  Pointer<const HeadView, Place::device> heads;  ///< [G] of a layer, whose slots are their positions
  int head_count = 0;
  std::int32_t first = 0, count = 0;           ///< tokens
  Pointer<const float, Place::device> angles;  ///< [positions, turned] cosine and sine of each pair in turn
  int turned = 0;
  bool neox = false;                   ///< pairs (i, i + turned / 2), else (2i, 2i + 1)
  Pointer<float, Place::device> rows;  ///< [count, G d]
};
void keys_before_rope(Stream& stream, const KeysBeforeRopeOp& op);

inline constexpr int kGramTile = 64;
inline constexpr int kGramSlices = 8;  ///< of the rows, whose sums are added in double
/// Floats of GramOp::parts.
constexpr std::size_t gram_floats(int width) {
  const auto tiles = static_cast<std::size_t>((width + kGramTile - 1) / kGramTile);
  return kGramSlices * (tiles * (tiles + 1) / 2) * kGramTile * kGramTile;
}

/// matrix += X^T X, both triangles.
struct GramOp {
  Pointer<const float, Place::device> rows;  ///< X [count, width]
  std::int32_t count = 0;
  int width = 0;
  Pointer<float, Place::device> parts;    ///< [gram_floats(width)]
  Pointer<double, Place::device> matrix;  ///< [width, width]
};
void gram(Stream& stream, const GramOp& op);

/// out = X V, rounded to a cache's type.
struct ProjectOp {
  Pointer<const float, Place::device> rows;  ///< X [count, width]
  std::int32_t count = 0;
  int width = 0, columns = 0;
  Pointer<const float, Place::device> directions;  ///< V [width, columns]
  KvType type = KvType::bf16;                      ///< or f16
  Pointer<std::uint16_t, Place::device> out;       ///< [count, columns]
};
void project(Stream& stream, const ProjectOp& op);

}  // namespace glimpse::kernels::cuda
