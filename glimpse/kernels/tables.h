// The flat tables that batched operations (ops.h) read and write. Plain structs; a pointer's type says in which memory
// it leads, so that a host table cannot be handed to a device. Nothing here owns memory: whoever makes a pass does, and
// keeps it in place until the operations that were given it have run. The host knows sizes and capacities; counts that
// a selection makes are known to the memory that holds them and to nobody else.
//
// Letters in brackets: R rows of the pass, H query heads, KV heads, g query heads of a KV head, d head dimension,
// N tokens that a row sees.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/views.h"

namespace glimpse::kernels {

enum class Place : std::uint8_t { host, device };

/// A pointer into one kind of memory. On the host it is a pointer; to a device's memory only raw() gives one, for
/// launches and copies.
template <class T, Place place>
class Pointer {
 public:
  Pointer() = default;
  Pointer(T* raw) : raw_(raw) {}  // NOLINT(google-explicit-constructor): it is a pointer
  constexpr T* raw() const { return raw_; }
  constexpr explicit operator bool() const { return raw_ != nullptr; }
  T& operator[](std::size_t i) const requires(place == Place::host) { return raw_[i]; }

 private:
  T* raw_ = nullptr;
};

/// The cache of one layer, as the rows of a pass see it. Views lead into the same memory as the table.
template <Place place>
struct KvTable {
  KvFormat format;
  Pointer<const HeadView, place> views;  ///< [sequences, kv_heads]
  int sequences = 0;
  int kv_heads = 0;
  /// What is known beforehand, and helps on a device. `fresh`: slots at the end of a view that a launch before may
  /// still be writing; those before them, and sets that are settled (Read), are read at once. -1: an operation waits
  /// for all. `longest`: slots of a view, at most; 0: unknown.
  int fresh = -1;
  int longest = 0;
};

/// The rows of a pass. Row r of a sequence sits `behind[r]` slots before the end of each of its heads' views: 1 is the
/// newest token; and it sees the slots up to its own.
template <Place place>
struct RowTable {
  Pointer<const std::int32_t, place> sequence;  ///< [R] into KvTable::views
  Pointer<const std::int32_t, place> behind;    ///< [R] from 1
  int rows = 0;
};

/// A row of memory that moves, by offsets in bytes.
struct RowMove {
  std::size_t from = 0, to = 0;
};

/// A page of two planes, K and V, at one offset in bytes, and its copy elsewhere: K, then V.
struct PageCopy {
  std::size_t at = 0;
  std::byte* copy = nullptr;
};

/// Sets: index lists that heads attend to. A set that covers everything has the count kEverything and no list.
inline constexpr std::int32_t kEverything = -1;
template <Place place>
struct SetTable {
  Pointer<std::int32_t, place> slots;  ///< [sets, capacity] ascending
  Pointer<std::int32_t, place> count;  ///< [sets] at most capacity, or kEverything
  std::int32_t capacity = 0;
  int sets = 0;
};

/// Scores of all slots for each query head, and the log-sum-exp of each row of scores (-inf: no slot). What a search
/// makes (SearchOp) are scores of blocks instead, without log-sum-exps.
template <Place place>
struct ScoreTable {
  Pointer<float, place> scores;  ///< [R, H, stride]; what lies behind a row's N is not written
  Pointer<float, place> lse;     ///< [R, H]
  std::size_t stride = 0;        ///< at least the largest N
};

/// Bounds of the keys of pages: of each dimension the least and the largest value of a page's slots. They hang on the
/// page, so sequences that share one share them, and a fork copies nothing.
template <Place place>
struct SummaryTable {
  Pointer<std::byte, place> bounds;  ///< [pages, 2, d] least, then largest; pages by their PageId
  KvType type = KvType::bf16;        ///< of the values: summary_type() of the cache's
};

/// The type that bounds of a cache's keys are kept in: its own, which holds them exactly; of q8_0 bf16, rounded
/// outward.
constexpr KvType summary_type(KvType cache) {
  return cache == KvType::q8_0 ? KvType::bf16 : cache;
}
/// The bf16 next to `value` that is not above it (`up`: not below it).
inline std::uint16_t bf16_toward(float value, bool up) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  auto half = static_cast<std::uint16_t>(bits >> 16);  // towards zero
  const bool away = (bits >> 31 != 0) != up;
  if ((bits & 0xffffU) != 0 && away && std::isfinite(value)) ++half;
  return half;
}
/// Bytes of one page's bounds.
constexpr std::size_t summary_bytes(const KvFormat& format) {
  return 2 * glimpse::row_bytes(summary_type(format.type), format.dim);
}

}  // namespace glimpse::kernels
