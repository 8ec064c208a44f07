// What indices over units (kv::PageBounds, kv::ChunkBounds, kv::Landmarks, kv::GateIndex) hold, as rows of floats that
// kernels::cuda::UnitSearch reads. Functions of their arguments; any thread.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/kernels/cuda/units.h"
#include "glimpse/kv/index/chunk_list.h"
#include "glimpse/kv/index/key_index.h"

namespace glimpse::attention::cuda {

struct UnitShape {
  kernels::cuda::UnitKind kind = kernels::cuda::UnitKind::mean;
  int width = 0;   ///< of a query
  int values = 0;  ///< of a row
  std::int32_t count = 0;
  bool radii = false;
};
/// `index` is one of those above.
UnitShape shape_of_units(const kv::KeyIndex& index);
/// One unit's row, [values]; returns its radius, 0 where it has none.
float write_unit(const kv::KeyIndex& index, std::int32_t unit, std::span<float> row);
/// Units that come before any other, ascending.
std::span<const std::int32_t> marked_units(const kv::KeyIndex& index);
/// The units where they are chunks, which differ in length; null: they are blocks.
const kv::ChunkList* chunks_of(const kv::KeyIndex& index);

}  // namespace glimpse::attention::cuda
