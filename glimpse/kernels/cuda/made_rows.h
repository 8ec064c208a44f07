// Sets whose rows do not all lie in the cache as they are read, queued on a stream between select and attend: they are
// put together in pages of their own. Keys of a prompt are made from their factors and turned (ShadowKV, section 4);
// all others, and V, are copied, from the host's memory where their page waits there (ArkVale, ShadowKV). Attend then
// reads those pages by a list that counts them.
//
// All memory is the device's, owned by the caller until the stream has passed the call. One thread at a time. Errors:
// as kernels/cuda/operations.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "glimpse/kernels/cuda/operations.h"

namespace glimpse::kernels::cuda {

/// In a head's table: the page waits in the slot of this number (MakeRowsOp::pieces). Nothing else may read it.
constexpr PageId kWaitingPage = PageId{1} << 31;

/// One set of a KV head of a row. Positions are slots.
struct MadeSet {
  std::int32_t row = 0, head = 0;
  std::int32_t set = 0;    ///< whose rows
  std::int32_t list = 0;   ///< the set that gets the list of where they lie
  std::int32_t first = 0;  ///< the slot of the first of them in the head's own pages, a multiple of kPageTokens
  std::int32_t end = 0;    ///< keys of positions below it are made from factors,
  std::int32_t chunk = 1;  ///< but for those of marked units of so many tokens
  std::int32_t marked_count = 0;
  std::int32_t rank = 0, stride = 0;       ///< columns that are read, of so many
  const std::int32_t* marked = nullptr;    ///< [marked_count] ascending
  const std::uint16_t* factors = nullptr;  ///< U [tokens, factor_stride(stride)] of factor_type()
  const std::uint32_t* basis = nullptr;    ///< B of the head, packed_basis
};

/// The type of factors: the cache's, beside bytes bf16.
constexpr KvType factor_type(KvType cache) {
  return cache == KvType::q8_0 ? KvType::bf16 : cache;
}

/// Columns of a row of U as it lies on the device, zeros behind those there are: a tensor core takes 16 at a time.
constexpr int factor_stride(int columns) {
  return (columns + 15) / 16 * 16;
}
/// B of a head, [columns, dim], as threads take it: for 16 columns by 8 dimensions at a time, four words for each of 32
/// threads, which say 16 bits of each value and then 16 of what is left. `type` is bf16 or f16. Host code.
std::vector<std::uint32_t> packed_basis(std::span<const float> basis, int columns, int dim, KvType type);

struct MakeRowsOp {
  KvTable<Place::device> cache;
  RowTable<Place::device> rows;
  SetTable<Place::device> sets;
  KvTable<Place::device> made;  ///< the same sequences and heads; those of the sets lead to their own pages
  Pointer<const MadeSet, Place::device> of;  ///< [count]
  int count = 0;
  std::int32_t most = 0;                       ///< rows of a set, at most: launches are sized by it
  Pointer<const float, Place::device> angles;  ///< [positions, turned] cosine and sine of each pair in turn
  int turned = 0;
  bool neox = false;  ///< pairs (i, i + turned / 2), else (2i, 2i + 1)
  /// Memory of the host that the device reaches: slot s, K, then V of a page, is the (s % piece_slots)th of its piece.
  Pointer<std::byte* const, Place::device> pieces;
  int piece_slots = 1;
};
void make_rows(Stream& stream, const MakeRowsOp& op);

}  // namespace glimpse::kernels::cuda
