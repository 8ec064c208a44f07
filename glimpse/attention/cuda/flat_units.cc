#include "glimpse/attention/cuda/flat_units.h"

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/kv/index/chunk_bounds.h"
#include "glimpse/kv/index/gate_index.h"
#include "glimpse/kv/index/landmarks.h"
#include "glimpse/kv/index/page_bounds.h"

namespace glimpse::attention::cuda {
namespace {

using kernels::cuda::UnitKind;
using Kind = kv::Digests::Kind;

/// Null: the index is of gates' keys.
const kv::Digests* digests_of(const kv::KeyIndex& index) {
  if (const auto* const pages = dynamic_cast<const kv::PageBounds*>(&index)) return &pages->digests();
  if (const auto* const chunks = dynamic_cast<const kv::Landmarks*>(&index)) return &chunks->digests();
  if (const auto* const chunks = dynamic_cast<const kv::ChunkBounds*>(&index)) return &chunks->digests();
  return nullptr;
}

const kv::GateIndex& gates_of(const kv::KeyIndex& index) {
  const auto* const gates = dynamic_cast<const kv::GateIndex*>(&index);
  check(gates != nullptr, "an index over units");
  return *gates;
}

}  // namespace

UnitShape shape_of_units(const kv::KeyIndex& index) {
  const kv::Digests* const digests = digests_of(index);
  if (digests == nullptr) {
    const kv::GateIndex& gates = gates_of(index);
    return {UnitKind::mean, gates.width(), gates.width(), gates.held(), false};
  }
  const int dim = digests->dim();
  const std::int32_t count = digests->count();
  switch (digests->kind()) {
    case Kind::min_max:
      return {UnitKind::bounds, dim, 2 * dim, count, false};
    case Kind::sphere:
      return {UnitKind::sphere, dim, dim, count, true};
    case Kind::mean_deviation:
      return {UnitKind::deviation, dim, 2 * dim, count, false};
    case Kind::mean:
      break;
  }
  return {UnitKind::mean, dim, dim, count, false};
}

float write_unit(const kv::KeyIndex& index, std::int32_t unit, std::span<float> row) {
  const kv::Digests* const digests = digests_of(index);
  if (digests == nullptr) {
    const auto from = gates_of(index).keys().begin() + static_cast<std::ptrdiff_t>(unit) * std::ssize(row);
    std::copy_n(from, row.size(), row.begin());
    return 0;
  }
  const std::vector<float> values = digests->row(unit);
  std::copy(values.begin(), values.end(), row.begin());
  if (digests->kind() == Kind::mean_deviation) {
    const std::vector<float> variances = digests->variances(unit);
    std::copy(variances.begin(), variances.end(), row.begin() + std::ssize(values));
  }
  return digests->kind() == Kind::sphere ? digests->radius(unit) : 0.0F;
}

std::span<const std::int32_t> marked_units(const kv::KeyIndex& index) {
  const auto* const chunks = dynamic_cast<const kv::Landmarks*>(&index);
  return chunks == nullptr ? std::span<const std::int32_t>() : std::span(chunks->outliers_by_position());
}

const kv::ChunkList* chunks_of(const kv::KeyIndex& index) {
  const auto* const bounds = dynamic_cast<const kv::ChunkBounds*>(&index);
  return bounds == nullptr ? nullptr : &bounds->chunks();
}

}  // namespace glimpse::attention::cuda
