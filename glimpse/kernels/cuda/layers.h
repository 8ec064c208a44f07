// What a layer of a transformer does beside matrix products and attention, queued on a stream: embedding, RMS norm with
// the residual's addition, biases, q and k norms and rotation, the gated activation. Products read bf16 and write f32,
// so what goes into one is bf16 and what comes out is f32.
//
// Letters in brackets: R rows, H query heads, KV heads, d head dimension. All memory is the device's, owned by the
// caller until the stream has passed the call. Errors: as kernels/cuda/operations.h.
#pragma once

#include <cstdint>

#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/cuda/packed.h"
#include "glimpse/kernels/cuda/readings.h"

namespace glimpse::kernels::cuda {

/// out[row] = table[token of the row], widened.
struct EmbedOp {
  DevicePointer<const Bf16> table;  ///< [vocabulary, width]
  RowTokens tokens;                 ///< [rows]
  DevicePointer<float> out;         ///< [rows, width]
  int rows = 0, width = 0;
};
void embed(Stream& stream, const EmbedOp& op);

/// residual += delta, where there is one; out = residual / rms(residual) * weight. Rows of up to 16,384 values, in
/// fours.
struct NormaliseOp {
  DevicePointer<float> residual;  ///< [rows, width]
  DevicePointer<const float> delta;
  DevicePointer<const float> weight;  ///< [width]
  DevicePointer<Bf16> out;            ///< [rows, width]
  int rows = 0, width = 0;
  float epsilon = 0;
};
void normalise(Stream& stream, const NormaliseOp& op);

/// Splits a product's rows into q, k and v; adds biases, norms q and k over each head, rotates them; writes k and v
/// into the cache, as ops.h's append does.
struct QkvOp {
  DevicePointer<const float> qkv;                     ///< [R, (H + 2 KV heads) d]
  DevicePointer<const float> q_bias, k_bias, v_bias;  ///< [H d], [KV heads d] or null
  DevicePointer<const float> q_norm, k_norm;          ///< [d] or null
  DevicePointer<const float> cos_sin;                 ///< [R, rotated]: cos and sin in turn
  DevicePointer<float> q;                             ///< [R, H, d]
  KvTable<Place::device> cache;                       ///< of KV heads with d dimensions
  RowTable<Place::device> rows;                       ///< R of them
  int heads = 0;
  int rotated = 0;    ///< dimensions
  bool neox = false;  ///< pairs (i, i + rotated / 2), else (2i, 2i + 1)
  float epsilon = 0;
};
void split_qkv(Stream& stream, const QkvOp& op);

/// out = silu(gate) * up, of rows [gate, up], in fours.
struct GateOp {
  DevicePointer<const float> gate_up;  ///< [rows, 2 width]
  DevicePointer<Bf16> out;             ///< [rows, width]
  int rows = 0, width = 0;
  bool paired = false;  ///< rows have eight values of gate and eight of up in turn
};
void gate(Stream& stream, const GateOp& op);

/// out[i] = from[which[i]], rows of f32.
struct TakeRowsOp {
  DevicePointer<const float> from;
  DevicePointer<const std::int32_t> which;  ///< [rows]
  DevicePointer<float> out;                 ///< [rows, width]
  int rows = 0, width = 0;
};
void take_rows(Stream& stream, const TakeRowsOp& op);

/// Rounds to the nearest bf16, in fours.
struct NarrowOp {
  DevicePointer<const float> from;
  DevicePointer<Bf16> out;
  std::size_t count = 0;
};
void narrow(Stream& stream, const NarrowOp& op);

/// Writes each value to its place; no two to the same.
struct Write {
  std::uint32_t* to = nullptr;  ///< on the device
  std::uint32_t value = 0;
};
struct WriteOp {
  DevicePointer<const Write> writes;
  int count = 0;
};
void write(Stream& stream, const WriteOp& op);

/// Rows of memory move, as if one after the other; none to where one behind it in the list lies.
struct MoveRowsOp {
  DevicePointer<std::byte> memory;  ///< aligned to 16 bytes
  DevicePointer<const RowMove> rows;
  int count = 0;
  int bytes = 0;  ///< of a row, a multiple of 16 or of 4 (it is slower then); so are all offsets
};
void move_rows(Stream& stream, const MoveRowsOp& op);

/// Pages to their copies in memory of the host that the device reaches (Pinned), or back.
struct CopyPagesOp {
  DevicePointer<std::byte> k, v;        ///< the planes, aligned to 16 bytes
  DevicePointer<const PageCopy> pages;  ///< [count]
  int count = 0;
  int bytes = 0;  ///< of a page in one plane, a multiple of 16
  bool back = false;
};
void copy_pages(Stream& stream, const CopyPagesOp& op);

}  // namespace glimpse::kernels::cuda
