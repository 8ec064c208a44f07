// What the host reads of a pass in place of its rows, queued on a stream: the largest logits, by which a token is
// chosen, the token that the next pass takes before the host has chosen it, how far attention turns the residual
// stream, and the speed of plain reads. All memory is the device's, owned by the caller until the stream has passed the
// call. Errors: as kernels/cuda/operations.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/base/draw.h"
#include "glimpse/kernels/cuda/operations.h"
#include "glimpse/kernels/cuda/packed.h"

namespace glimpse::kernels::cuda {

/// A place in a row and what stands there; `at` is -1 where the row holds NaN or infinity.
struct Standing {
  std::int32_t at = -1;
  float value = 0;
};

/// Tokens of rows, ids of a vocabulary. One of -1 - i is where standings[i] stands, and 0 where that is nowhere.
struct RowTokens {
  DevicePointer<const std::int32_t> tokens;
  DevicePointer<const Standing> standings;  ///< may be null where no token is negative
};

/// That largest() gives of a row.
inline constexpr int kMostLargest = 128;

/// The `count` largest values of each row; of equal ones those that come first. Of one row they are in no order.
struct LargestOp {
  DevicePointer<const float> values;  ///< [rows, width]
  DevicePointer<Standing> out;        ///< [rows, count]
  int rows = 0, width = 0;            ///< width: `count` or more
  int count = 1;                      ///< 1 to kMostLargest
};
void largest(Stream& stream, const LargestOp& op);

/// Of each row what it draws from its largest values.
struct DrawOp {
  DevicePointer<const Standing> largest;  ///< [rows, count] as largest() leaves them, in any order
  DevicePointer<const Draw> draws;        ///< [rows]
  DevicePointer<Standing> out;            ///< [rows]; `at` is -1 where the row has no largest
  int rows = 0;
  int count = 1;  ///< 1 to kMostLargest
};
void draw(Stream& stream, const DrawOp& op);

/// out[row] = 1 - cosine(x, x + delta); 0 where one of them is zero.
struct ChangeOp {
  DevicePointer<const float> x, delta;  ///< [rows, width]
  DevicePointer<float> out;             ///< [rows]
  int rows = 0, width = 0;
};
void change(Stream& stream, const ChangeOp& op);

/// For measuring: reads `bytes` (a multiple of 16 KiB) once; `sum` [1] keeps the compiler from leaving them unread.
void read_all(Stream& stream, const std::byte* from, std::size_t bytes, unsigned* sum);

}  // namespace glimpse::kernels::cuda
