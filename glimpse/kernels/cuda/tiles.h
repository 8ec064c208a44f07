// Tiles of a prompt that read a part of what lies before them (Kascade, section 3.4), queued on a stream beside the
// operations of kernels/ops.h: what a tile's rows see of it is for all of them the same, and of the tile itself each
// row sees what lies up to it.
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors:
// as kernels/cuda/operations.h.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// What one KV head of a tile reads before its own rows.
struct TileRead {
  std::int32_t set = -1;             ///< a set of slots before the tile; -1: slots [0, sink) and those from `local` on
  std::int32_t sink = 0, local = 0;  ///< both 0: all of them; else `local` is not below `sink`
};

/// Softmax attention of tiles. Freed slots are skipped.
struct TilesOp {
  KvTable<Place::device> cache;
  Pointer<const PromptRows, Place::device> tiles;  ///< [count]
  int count = 0;
  int rows = 0;                                  ///< of a tile, at most
  Pointer<const TileRead, Place::device> reads;  ///< [count, kv_heads]
  SetTable<Place::device> sets;                  ///< unused where no head reads one
  Pointer<const float, Place::device> q;         ///< [R, H, d] after RoPE, of the whole pass
  int group = 1;
  float scale = 1;
  Pointer<float, Place::device> out;  ///< [R, H, d], of the whole pass
};
void attend_tiles(Stream& stream, const TilesOp& op);

/// What the rows of tiles gave to each slot before their tile: as ColumnSumsOp, in parts.
struct TileSumsOp {
  KvTable<Place::device> cache;                    ///< without freed slots
  Pointer<const PromptRows, Place::device> tiles;  ///< [count] of up to kTileSumRows (token, query head) rows
  int count = 0;
  Pointer<const float, Place::device> q;    ///< [R, H, d] after RoPE, of the whole pass
  Pointer<const float, Place::device> lse;  ///< [R, H] of all that the rows see, of the whole pass
  int group = 1;
  float scale = 1;
  Pointer<float, Place::device> sums;  ///< [count, kv_heads, kTileSumParts, stride]; added up they are the sums
  std::size_t stride = 0;
};
inline constexpr int kTileSumRows = 128;
inline constexpr int kTileSumParts = 2;
/// Whether the device has this and sum_rows, for heads of that dimension: elsewhere column_sums and prefill do the
/// same.
bool has_tile_sums(const Stream& stream, int dim);
void sum_tiles(Stream& stream, const TileSumsOp& op);

/// The log-sum-exps alone that PrefillOp makes. Reads K, not V.
struct RowSumsOp {
  KvTable<Place::device> cache;  ///< without freed slots
  PromptRows prompt;
  Pointer<const float, Place::device> q;  ///< [R, H, d] after RoPE, of the whole pass
  int group = 1;
  float scale = 1;
  Pointer<float, Place::device> lse;  ///< [R, H] of the whole pass
};
void sum_rows(Stream& stream, const RowSumsOp& op);

/// The mean over a tile's rows and the group of their queries.
struct MeanQueriesOp {
  Pointer<const PromptRows, Place::device> tiles;  ///< [count]
  int count = 0;
  Pointer<const float, Place::device> q;  ///< [R, H, d], of the whole pass
  int kv_heads = 1, group = 1, dim = 0;
  Pointer<float, Place::device> out;  ///< [count, kv_heads, d]
};
void mean_queries(Stream& stream, const MeanQueriesOp& op);

}  // namespace glimpse::kernels::cuda
