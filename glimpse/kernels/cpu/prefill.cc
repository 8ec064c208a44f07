#include "glimpse/kernels/cpu/prefill.h"

#include <algorithm>
#include <array>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "glimpse/kernels/cpu/prefill.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h.
#include "glimpse/base/error.h"
#include "glimpse/kernels/cpu/vec-inl.h"

// The tile is computed transposed: query vectors lie across lanes, so that maxima, exponentials and sums of the
// softmax need no step across lanes, and K and V are read by broadcast, without a transpose. Lanes are independent
// and blocks of keys start at fixed slots: a row's result does not depend on the tile it lands in.
#ifndef GLIMPSE_KERNELS_PREFILL_LAYOUT
#define GLIMPSE_KERNELS_PREFILL_LAYOUT
namespace glimpse::kernels {

constexpr int kTileLanes = 192;  ///< query vectors of a tile; whole panels for every vector length
constexpr int kBlockKeys = kBf16Keys;
constexpr std::size_t kChunk = 8;  ///< values of V of one key that lie together

struct PrefillSpace {
  float* queries;  ///< [panel, d, lane] times scale and log2(e); pairs of bf16 with bf16 products
  float* out;      ///< [panel, d, lane]
  float* scores;   ///< [key, lane] of one panel
  float* keys;     ///< [key, d]
  float* values;   ///< [d / 8, key, 8]
  float* largest;  ///< [panel * lane], as are the following
  float* sum;
  float* fade;
  std::int32_t* limit;  ///< last visible slot
};

inline std::size_t prefill_floats(std::size_t dim) {
  return 2 * dim * kTileLanes + kBlockKeys * (kBf16Lanes + 2 * dim) + 4 * kTileLanes;
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
  space.scores = take(std::size_t{kBlockKeys} * kBf16Lanes);
  space.keys = take(kBlockKeys * dim);
  space.values = take(kBlockKeys * dim);
  space.largest = take(kTileLanes);
  space.sum = take(kTileLanes);
  space.fade = take(kTileLanes);
  space.limit = reinterpret_cast<std::int32_t*>(take(kTileLanes));
  return space;
}

}  // namespace glimpse::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace glimpse::kernels::HWY_NAMESPACE {
namespace {

using Tag = hn::ScalableTag<float>;
constexpr int kRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
constexpr int kVectors = 3;  ///< 4 x 3 accumulators fill 16 registers, 8 x 3 fill 32

/// The live keys of one block.
struct KeyBlock {
  int count = 0;
  std::array<std::int32_t, kBlockKeys> slot;
};

KeyBlock live_keys(const HeadView& head, std::int32_t from, std::int32_t to) {
  KeyBlock block;
  for (std::int32_t slot = from; slot < to; ++slot) {
    block.slot[static_cast<std::size_t>(block.count)] = slot;
    block.count += head.positions == nullptr || head.positions[slot] >= 0;
  }
  return block;
}

float row_scale(const KvFormat& format, const HeadView& head, std::byte* plane, std::int32_t slot) {
  float scale;
  const std::byte* scales = head.page_of(plane, slot, format) + format.scale_offset();
  std::memcpy(&scale, scales + sizeof(float) * static_cast<std::size_t>(slot & (kPageTokens - 1)), sizeof scale);
  return scale;
}

/// Values [i, i + Lanes(d)) of a row, in row order.
template <KvType kType, class D>
HWY_INLINE hn::Vec<D> load_values(D d, const std::byte* row, std::size_t i) {
  const std::byte* at = row + i * Unit<kType>::kBytes;
  if constexpr (kType == KvType::f32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(at));
  } else if constexpr (kType == KvType::f16) {
    const hn::Rebind<hwy::float16_t, D> dh;
    return hn::PromoteTo(d, hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(at)));
  } else if constexpr (kType == KvType::bf16) {
    const hn::Rebind<std::uint16_t, D> dh;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::LoadU(dh, reinterpret_cast<const std::uint16_t*>(at));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, bits)));
  } else {
    const hn::Rebind<std::int8_t, D> d8;
    const hn::RebindToSigned<D> di;
    return hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(at))));
  }
}

/// K of a block as [key, d], V as [d / 8, key, 8], both f32. Zero rows up to the next multiple of kRows keys.
template <KvType kType>
void widen_block(const KvFormat& format, const HeadView& head, const KeyBlock& block, const PrefillSpace& space) {
  const hn::CappedTag<float, kChunk> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto dim = static_cast<std::size_t>(format.dim);
  const int padded = (block.count + kRows - 1) / kRows * kRows;
  for (int key = 0; key < padded; ++key) {
    float* k = space.keys + static_cast<std::size_t>(key) * dim;
    float* v = space.values + static_cast<std::size_t>(key) * kChunk;
    if (key >= block.count) {
      std::fill(k, k + dim, 0.0F);
      continue;
    }
    const std::int32_t slot = block.slot[static_cast<std::size_t>(key)];
    const std::byte* k_row = head.row_of(head.k_plane, slot, format);
    const std::byte* v_row = head.row_of(head.v_plane, slot, format);
    auto k_scale = hn::Set(d, 1.0F);
    auto v_scale = k_scale;
    if constexpr (kType == KvType::q8_0) {
      k_scale = hn::Set(d, row_scale(format, head, head.k_plane, slot));
      v_scale = hn::Set(d, row_scale(format, head, head.v_plane, slot));
    }
    for (std::size_t i = 0; i < dim; i += lanes) {
      auto a = load_values<kType>(d, k_row, i);
      auto b = load_values<kType>(d, v_row, i);
      if constexpr (kType == KvType::q8_0) {
        a = hn::Mul(a, k_scale);
        b = hn::Mul(b, v_scale);
      }
      hn::StoreU(a, d, k + i);
      hn::StoreU(b, d, v + i / kChunk * kChunk * kBlockKeys + i % kChunk);
    }
  }
}

/// K of a block as [key, d] bf16, V as pairs of keys [d / 8, key / 2, 8]. Zero rows up to the next multiple of 8.
void pack_block_bf16(const KvFormat& format, const HeadView& head, const KeyBlock& block, const PrefillSpace& space) {
  const auto dim = static_cast<std::size_t>(format.dim);
  auto* keys = reinterpret_cast<std::uint16_t*>(space.keys);
  auto* values = reinterpret_cast<std::uint32_t*>(space.values);
  const int padded = (block.count + 7) / 8 * 8;
  for (int key = 0; key < padded; key += 2) {
    std::array<const std::byte*, 2> v_row{};
    for (int odd = 0; odd < 2; ++odd) {
      std::uint16_t* to = keys + static_cast<std::size_t>(key + odd) * dim;
      if (key + odd >= block.count) {
        std::fill(to, to + dim, std::uint16_t{0});
        continue;
      }
      const std::int32_t slot = block.slot[static_cast<std::size_t>(key + odd)];
      std::memcpy(to, head.row_of(head.k_plane, slot, format), 2 * dim);
      v_row[static_cast<std::size_t>(odd)] = head.row_of(head.v_plane, slot, format);
    }
    for (std::size_t i = 0; i < dim; ++i) {
      std::uint16_t low = 0;
      std::uint16_t high = 0;
      if (v_row[0] != nullptr) std::memcpy(&low, v_row[0] + 2 * i, 2);
      if (v_row[1] != nullptr) std::memcpy(&high, v_row[1] + 2 * i, 2);
      values[i / kChunk * kChunk * (kBlockKeys / 2) + static_cast<std::size_t>(key / 2) * kChunk + i % kChunk] =
          static_cast<std::uint32_t>(high) << 16 | low;
    }
  }
}

/// scores[key, lane] = keys[key, i] * queries[i, lane], summed over i; keys in kRows at a time.
HWY_INLINE void multiply_keys(const float* HWY_RESTRICT keys, const float* HWY_RESTRICT queries, std::size_t dim,
                              int count, float* HWY_RESTRICT scores) {
  const Tag d;
  using V = hn::Vec<Tag>;
  const std::size_t lanes = hn::Lanes(d);
  for (int key = 0; key < count; key += kRows) {
    V sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) sums[r][c] = hn::Zero(d);
    }
    const float* rows = keys + static_cast<std::size_t>(key) * dim;
    for (std::size_t i = 0; i < dim; ++i) {
      const float* at = queries + i * kVectors * lanes;
      const V q0 = hn::Load(d, at);
      const V q1 = hn::Load(d, at + lanes);
      const V q2 = hn::Load(d, at + 2 * lanes);
      for (int r = 0; r < kRows; ++r) {
        const V k = hn::Set(d, rows[static_cast<std::size_t>(r) * dim + i]);
        sums[r][0] = hn::MulAdd(k, q0, sums[r][0]);
        sums[r][1] = hn::MulAdd(k, q1, sums[r][1]);
        sums[r][2] = hn::MulAdd(k, q2, sums[r][2]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int c = 0; c < kVectors; ++c) {
        hn::Store(sums[r][c], d, scores + static_cast<std::size_t>((key + r) * kVectors + c) * lanes);
      }
    }
  }
}

/// out[i, lane] = out[i, lane] * fade[lane] + values[key, i] * weights[key, lane], summed over keys.
HWY_INLINE void multiply_values(const float* HWY_RESTRICT values, const float* HWY_RESTRICT weights, const float* fade,
                                Bf16Shape shape, float* HWY_RESTRICT out) {
  const Tag d;
  using V = hn::Vec<Tag>;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.dim); i += kRows) {
    const float* column = values + i / kChunk * kChunk * kBlockKeys + i % kChunk;
    V sums[kRows][kVectors];
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t c = 0; c < kVectors; ++c) {
        sums[r][c] = hn::Mul(hn::Load(d, out + ((i + r) * kVectors + c) * lanes), hn::Load(d, fade + c * lanes));
      }
    }
    for (std::size_t key = 0; key < static_cast<std::size_t>(shape.keys); ++key) {
      const float* at = weights + key * kVectors * lanes;
      const V w0 = hn::Load(d, at);
      const V w1 = hn::Load(d, at + lanes);
      const V w2 = hn::Load(d, at + 2 * lanes);
      for (std::size_t r = 0; r < kRows; ++r) {
        const V v = hn::Set(d, column[key * kChunk + r]);
        sums[r][0] = hn::MulAdd(v, w0, sums[r][0]);
        sums[r][1] = hn::MulAdd(v, w1, sums[r][1]);
        sums[r][2] = hn::MulAdd(v, w2, sums[r][2]);
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t c = 0; c < kVectors; ++c) {
        hn::Store(sums[r][c], d, out + ((i + r) * kVectors + c) * lanes);
      }
    }
  }
}

/// What a panel of lanes keeps between blocks.
struct PanelState {
  float* largest;
  float* sum;
  float* fade;
  const std::int32_t* limit;
};

/// Scores of a panel become weights, in place; fade tells how much the sums so far shrink.
HWY_INLINE void take_block(float* HWY_RESTRICT scores, const KeyBlock& block, std::size_t width,
                           const PanelState& state) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const std::size_t lanes = hn::Lanes(d);
  const auto count = static_cast<std::size_t>(block.count);
  // Limits ascend with the lanes: keys that the first lane sees, all see.
  std::size_t seen = count;
  while (seen > 0 && block.slot[seen - 1] > state.limit[0]) --seen;
  for (std::size_t c = 0; c < width; c += lanes) {
    const auto limit = hn::Load(di, state.limit + c);
    for (std::size_t key = seen; key < count; ++key) {
      float* at = scores + key * width + c;
      const auto hidden = hn::Gt(hn::Set(di, block.slot[key]), limit);
      hn::Store(hn::IfThenElse(hn::RebindMask(d, hidden), hn::Set(d, kMinusInfinity), hn::Load(d, at)), d, at);
    }
    const auto before = hn::Load(d, state.largest + c);
    auto largest = before;
    for (std::size_t key = 0; key < count; ++key) largest = hn::Max(largest, hn::Load(d, scores + key * width + c));
    // A lane that has seen nothing but -inf: any finite reference makes its weights 0.
    const auto none = hn::Eq(largest, hn::Set(d, kMinusInfinity));
    const auto reference = hn::IfThenZeroElse(none, largest);
    auto sum = hn::Zero(d);
    for (std::size_t key = 0; key < count; ++key) {
      float* at = scores + key * width + c;
      const auto weight = exp2(d, hn::Sub(hn::Load(d, at), reference));
      sum = hn::Add(sum, weight);
      hn::Store(weight, d, at);
    }
    const auto fade = exp2(d, hn::Sub(before, reference));
    hn::Store(hn::MulAdd(hn::Load(d, state.sum + c), fade, sum), d, state.sum + c);
    hn::Store(largest, d, state.largest + c);
    hn::Store(fade, d, state.fade + c);
  }
}

/// Query vectors across lanes: lane r * g + j is row r, query head j. Empty lanes are zero.
HWY_INLINE void arrange_tile(const KvFormat& format, const PrefillItem& item, std::size_t width, bool pairs,
                             const PrefillSpace& space) {
  const auto dim = static_cast<std::size_t>(format.dim);
  const auto group = static_cast<std::size_t>(item.group);
  const std::size_t used = static_cast<std::size_t>(item.rows) * group;
  const std::size_t lanes = (used + width - 1) / width * width;
  const float scale = item.scale * 1.44269504F;
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    const std::size_t row = std::min(lane, used - 1) / group;
    const float* query = item.query + row * item.query_stride + (lane < used ? lane % group : 0) * dim;
    const float factor = lane < used ? scale : 0.0F;
    float* to = space.queries + lane / width * width * dim + lane % width;
    if (pairs) {
      auto* packed = reinterpret_cast<std::uint32_t*>(space.queries) + lane / width * width * (dim / 2) + lane % width;
      for (std::size_t i = 0; i < dim; i += 2) {
        const std::uint32_t low = bf16_from_float(query[i] * factor);
        const std::uint32_t high = bf16_from_float(query[i + 1] * factor);
        packed[i / 2 * width] = high << 16 | low;
      }
    } else {
      for (std::size_t i = 0; i < dim; ++i) to[i * width] = query[i] * factor;
    }
    space.limit[lane] = item.first_slot + static_cast<std::int32_t>(row);
  }
  std::fill(space.out, space.out + lanes * dim, 0.0F);
  std::fill(space.sum, space.sum + lanes, 0.0F);
  std::fill(space.largest, space.largest + lanes, kMinusInfinity);
}

void write_tile(const KvFormat& format, const PrefillItem& item, std::size_t width, const PrefillSpace& space) {
  const auto dim = static_cast<std::size_t>(format.dim);
  const auto group = static_cast<std::size_t>(item.group);
  for (std::size_t lane = 0; lane < static_cast<std::size_t>(item.rows) * group; ++lane) {
    const float* from = space.out + lane / width * width * dim + lane % width;
    float* to = item.out + lane / group * item.out_stride + lane % group * dim;
    const float sum = space.sum[lane];
    const float inverse = sum == 0 ? 0.0F : 1.0F / sum;
    for (std::size_t i = 0; i < dim; ++i) to[i] = from[i * width] * inverse;
  }
}

/// Fetches share `part` of `parts` of the rows of the block that comes next.
void prefetch_share(const KvFormat& format, const HeadView& head, std::int32_t from, std::int32_t to, std::size_t part,
                    std::size_t parts) {
  const auto share = static_cast<std::int32_t>((kBlockKeys + parts - 1) / parts);
  const std::int32_t first = from + share * static_cast<std::int32_t>(part);
  for (std::int32_t slot = first; slot < std::min(first + share, to); ++slot) {
    const std::byte* k = head.row_of(head.k_plane, slot, format);
    const std::byte* v = head.row_of(head.v_plane, slot, format);
    for (std::size_t at = 0; at < format.row_bytes(); at += 64) {
      prefetch_l2(k + at);
      prefetch_l2(v + at);
    }
  }
}

template <KvType kType>
HWY_INLINE void prefill_tile(const KvFormat& format, const PrefillItem& item, const PrefillSpace& space,
                             const Bf16Products* products) {
  const auto dim = static_cast<std::size_t>(format.dim);
  const std::size_t width = products != nullptr ? kBf16Lanes : kVectors * hn::Lanes(Tag());
  const std::size_t panels = (static_cast<std::size_t>(item.rows * item.group) + width - 1) / width;
  arrange_tile(format, item, width, products != nullptr, space);
  const std::int32_t end = item.first_slot + item.rows;
  for (std::int32_t from = 0; from < end; from += kBlockKeys) {
    const KeyBlock block = live_keys(*item.head, from, std::min(from + kBlockKeys, end));
    if (block.count == 0) continue;
    if (products != nullptr) {
      pack_block_bf16(format, *item.head, block, space);
    } else {
      widen_block<kType>(format, *item.head, block, space);
    }
    const Bf16Shape shape{format.dim, (block.count + 7) / 8 * 8};
    for (std::size_t p = 0; p < panels; ++p) {
      prefetch_share(format, *item.head, from + kBlockKeys, end, p, panels);
      const std::size_t lane = p * width;
      const PanelState state{space.largest + lane, space.sum + lane, space.fade + lane, space.limit + lane};
      if (block.slot[0] > state.limit[width - 1]) continue;
      float* out = space.out + lane * dim;
      if (products != nullptr) {
        products->scores(shape, reinterpret_cast<const std::uint16_t*>(space.keys),
                         reinterpret_cast<const std::uint32_t*>(space.queries) + lane * (dim / 2), space.scores);
        take_block(space.scores, block, width, state);
        std::fill(space.scores + static_cast<std::size_t>(block.count) * width,
                  space.scores + static_cast<std::size_t>(shape.keys) * width, 0.0F);
        products->values(shape, reinterpret_cast<const std::uint32_t*>(space.values), space.scores, state.fade, out);
      } else {
        multiply_keys(space.keys, space.queries + lane * dim, dim, block.count, space.scores);
        take_block(space.scores, block, width, state);
        multiply_values(space.values, space.scores, state.fade, {format.dim, block.count}, out);
      }
    }
  }
  write_tile(format, item, width, space);
}

void prefill_target(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                    const Bf16Products* products) {
  const PrefillSpace space = carve_prefill(workspace, static_cast<std::size_t>(format.dim));
  with_kv_type(format.type, [&](auto type) HWY_ATTR {
    prefill_tile<decltype(type)::value>(format, item, space, type == KvType::bf16 ? products : nullptr);
  });
}

/// Only beside AVX-512: a process held to another instruction set gets f32 products.
const Bf16Products* products_target() {
  return HWY_TARGET == HWY_AVX3 ? bf16_products() : nullptr;
}

}  // namespace
}  // namespace glimpse::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace glimpse::kernels {
HWY_EXPORT(prefill_target);
HWY_EXPORT(products_target);

int prefill_tile_rows(int group) {
  return std::max(1, kTileLanes / group);
}

std::size_t prefill_workspace(const KvFormat& format, int /*group*/) {
  return prefill_floats(static_cast<std::size_t>(format.dim)) * sizeof(float) + 64;
}

void prefill_with(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace,
                  const Bf16Products* products) {
  check(item.rows >= 1 && item.rows <= prefill_tile_rows(item.group), "prefill got more rows than a tile takes");
  check(workspace.size() >= prefill_workspace(format, item.group), "prefill needs more workspace");
  HWY_DYNAMIC_DISPATCH(prefill_target)(format, item, workspace, products);
}

void prefill(const KvFormat& format, const PrefillItem& item, std::span<std::byte> workspace) {
  prefill_with(format, item, workspace, HWY_DYNAMIC_DISPATCH(products_target)());
}

}  // namespace glimpse::kernels
#endif
