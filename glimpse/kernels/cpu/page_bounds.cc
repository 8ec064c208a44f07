#include "glimpse/kernels/cpu/page_bounds.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "glimpse/base/size.h"
#include "glimpse/kernels/index.h"

namespace glimpse::kernels {
namespace {

void put(KvType cache, std::byte* to, float value, bool up) {
  if (cache == KvType::f32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const std::uint16_t half = cache == KvType::f16    ? f16_from_float(value)
                             : cache == KvType::q8_0 ? bf16_toward(value, up)
                                                     : bf16_from_float(value);
  std::memcpy(to, &half, sizeof half);
}

float get(KvType type, const std::byte* from) {
  float value = 0;
  std::uint16_t half = 0;
  if (type == KvType::f32) {
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  std::memcpy(&half, from, sizeof half);
  return type == KvType::f16 ? float_from_f16(half) : float_from_bf16(half);
}

/// Writes the bounds of a block of pages as one digest of a tile (index.h); `tile` leads to its first value.
void put_digest(const SearchOp<Place::host>& op, const PageId* pages, std::int32_t count, float* tile) {
  const std::size_t dim = size(op.cache.format.dim);
  const std::size_t each = row_bytes(op.summaries.type, 1);
  for (std::size_t i = 0; i < 2 * dim; ++i) {
    const bool most = i >= dim;
    float value = 0;
    for (std::int32_t p = 0; p < count; ++p) {
      const std::byte* from = op.summaries.bounds.raw() + pages[p] * summary_bytes(op.cache.format) + i * each;
      const float one = get(op.summaries.type, from);
      value = p == 0 ? one : most ? std::max(value, one) : std::min(value, one);
    }
    tile[(most ? 2 * (i - dim) + 1 : 2 * i) * size(kDigestTile)] = value;
  }
}

}  // namespace

void summarise_pages(const SummariseOp<Place::host>& op, const PageRange& range) {
  const KvFormat& format = op.cache.format;
  const std::size_t dim = size(format.dim);
  const HeadView& view = op.cache.views[size(range.sequence) * size(op.cache.kv_heads) + size(range.head)];
  std::array<float, kPageTokens * kMaxHeadDim> keys;
  std::array<float, 2 * kMaxHeadDim> bounds;
  const std::size_t each = row_bytes(op.out.type, 1);
  for (std::int32_t page = range.first; page < range.last; ++page) {
    read_keys(format, view, page * kPageTokens, kPageTokens, keys.data());
    row_bounds({keys.data(), kPageTokens, format.dim}, bounds.data(), bounds.data() + dim);
    std::byte* const to = op.out.bounds.raw() + view.pages[page] * summary_bytes(format);
    for (std::size_t i = 0; i < 2 * dim; ++i) put(format.type, to + i * each, bounds[i], i >= dim);
  }
}

void search_blocks(const SearchOp<Place::host>& op, const Search& search, std::vector<float>& space) {
  const std::size_t dim = size(op.cache.format.dim);
  const std::size_t needed = 2 * dim * size(kDigestTile);
  if (space.size() < needed) space.assign(needed, 0.0F);
  const HeadView& view =
      op.cache.views[size(op.rows.sequence[size(search.row)]) * size(op.cache.kv_heads) + size(search.head)];
  const std::size_t query = (size(search.row) * size(op.cache.kv_heads) + size(search.head)) * size(op.group);
  DigestScoreItem item{.tiles = reinterpret_cast<const std::byte*>(space.data())};
  item.bounds = true;
  item.dim = op.cache.format.dim;
  item.scale = op.scale;
  for (std::int32_t first = search.first; first < search.last; first += kDigestTile) {
    item.count = std::min(kDigestTile, search.last - first);
    for (std::int32_t i = 0; i < item.count; ++i) {
      put_digest(op, view.pages + size(first + i) * size(search.pages), search.pages, space.data() + i);
    }
    for (std::size_t j = query; j < query + size(op.group); ++j) {
      item.queries = op.q.raw() + j * dim;
      item.scores = op.out.scores.raw() + j * op.out.stride + first;
      score_digests(item);
    }
  }
}

}  // namespace glimpse::kernels
