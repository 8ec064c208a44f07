// A warp's product of 16 outputs by few rows, super block after super block. A tensor core multiplies by eight columns:
// rows of inputs, or, of less than five rows, what the groups of inputs that share a scale give each. Then a column is
// one group of one row, zeros stand for the inputs of the other groups, and a thread multiplies by the scales of two
// groups in place of all. A row's bits are the same for any number of rows up to eight: a thread's sum of an output has
// four shares, by the inputs that they come from.
#pragma once

#include "glimpse/kernels/cuda/packed.cuh"

namespace glimpse::kernels::cuda {

/// kRows: 1, 2, 4, 8, 16 or 32.
template <int kRows>
struct RowSums {
  static constexpr bool kGroups = kRows <= 4;  ///< columns are groups
  static constexpr int kTiles = kRows <= 8 ? 1 : kRows / 8;
  static constexpr int kShares = kRows <= 4 ? kRows : kRows == 8 ? 4 : 1;  ///< that a thread has of a sum
  static constexpr int kValues = kGroups ? 2 : 4;  ///< outputs r and r + 8, of one column or of two
  float of[kTiles][kShares][kValues] = {};

  /// Writes the warp's sums, [kRows, 16]; all threads of it.
  __device__ void store(float* to) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kGroups) {
      constexpr int kThreads = 4 / kRows;  // that have shares of the same sums
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float shares[kShares];
#pragma unroll
        for (int s = 0; s < kShares; ++s) {
          shares[s] = of[0][s][i];
#pragma unroll
          for (int step = 1; step < kThreads; step *= 2) shares[s] += __shfl_xor_sync(~0U, shares[s], step);
        }
        const float sum = added(shares);
        if (lane % kThreads == 0) to[lane % 4 / kThreads * kPackedRows + lane / 4 + i * 8] = sum;
      }
    } else {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float shares[kShares];
#pragma unroll
          for (int s = 0; s < kShares; ++s) shares[s] = of[n][s][i];
          to[(n * 8 + 2 * (lane % 4) + i % 2) * kPackedRows + lane / 4 + i / 2 * 8] = added(shares);
        }
      }
    }
  }

 private:
  __device__ static float added(const float (&shares)[kShares]) {
    if constexpr (kShares == 4) return (shares[0] + shares[1]) + (shares[2] + shares[3]);
    if constexpr (kShares == 2) return shares[0] + shares[1];
    return shares[0];
  }
};

/// Where a warp's inputs lie.
struct RowInputs {
  const Bf16* from;  ///< of the first row, at the super block's first input
  int width;         ///< of a row
  int left;          ///< inputs of a row from there on
  int rows;
};

template <Packing kPacking>
inline constexpr bool kHasOffsets = kPacking.scales == Scales::block_offset || kPacking.scales == Scales::super_offset;

/// Two bf16 that are one.
inline constexpr std::uint32_t kOnePair = 0x3f803f80U;

/// sum += scale * product, and offset * the sum of the inputs; the product is of integers that kTooMuch is added to.
template <Packing kPacking>
__device__ void add_scaled(float& sum, float scale, float offset, float product, float inputs) {
  sum += scale * product;
  if constexpr (kHasOffsets<kPacking>) sum += (offset - kTooMuch * scale) * inputs;
}

/// A super block's inputs that a thread holds before it comes to them: where columns are groups. `of[turn]` is of this
/// column in the turn.
template <Packing kPacking, int kRows>
struct SuperInputs {
  static constexpr bool kSixteen = kPacking.scales == Scales::super_signed;
  static constexpr int kGroupInputs = kSixteen ? 16 : 32;
  static constexpr int kColumns = RowSums<kRows>::kGroups ? 8 / kRows : 1;  // of a row
  static constexpr int kTurns = kPackedInputs / kGroupInputs / kColumns;    // until all groups had a column
  uint4 of[RowSums<kRows>::kGroups ? kTurns : 1];

  __device__ void load(const RowInputs& in) {
    if constexpr (RowSums<kRows>::kGroups) {
      const int column = static_cast<int>(threadIdx.x) % 32 / 4, four = static_cast<int>(threadIdx.x) % 4;
      const Bf16* const row =
          in.from + static_cast<std::size_t>(column / kColumns < in.rows ? column / kColumns : 0) * in.width;
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int input = (turn * kColumns + column % kColumns) * kGroupInputs;
        const Bf16* const at = row + (input < in.left ? input : 0) + kGroupInputs / 4 * four;  // scales behind are zero
        if constexpr (kSixteen) {
          const uint2 two = *reinterpret_cast<const uint2*>(at);
          of[turn] = make_uint4(two.x, two.y, 0, 0);
        } else {
          of[turn] = *reinterpret_cast<const uint4*>(at);
        }
      }
    }
  }
};

/// Columns are groups of one, two or four rows.
template <Packing kPacking, int kRows>
__device__ void add_super_of_groups(const std::byte* super, const SuperInputs<kPacking, kRows>& in,
                                    const Widening& widening, RowSums<kRows>& sums) {
  using Inputs = SuperInputs<kPacking, kRows>;
  constexpr bool kSixteen = Inputs::kSixteen;
  constexpr int kColumns = Inputs::kColumns, kTurns = Inputs::kTurns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = lane / 4, four = lane % 4;
  // Two chains of products where there is one turn: a column's other sum is zero.
  constexpr int kChains = kTurns == 1 ? 2 : kTurns;
  float products[kChains][4] = {};
  float inputs[kHasOffsets<kPacking> ? kChains : 1][4] = {};
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    const TileIntegers<kPacking> now = read_integers<kPacking>(super, tile);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const int group = kSixteen ? tile * 4 + step : tile * 2 + step / 2;
      const int turn = group / kColumns;
      const bool mine = column % kColumns == group % kColumns;
      const bool later = !kSixteen && step % 2 == 1;
      const std::uint32_t x = mine ? (later ? in.of[turn].z : in.of[turn].x) : 0U;
      const std::uint32_t y = mine ? (later ? in.of[turn].w : in.of[turn].y) : 0U;
      std::uint32_t weights[4];
      widen_integers<kPacking, kHasOffsets<kPacking>>(now, step, widening, weights);
      const int chain = kTurns == 1 ? tile / 2 : turn;
      multiply<__nv_bfloat16>(products[chain], weights, x, y);
      if constexpr (kHasOffsets<kPacking>) {
        constexpr std::uint32_t kOnes[4] = {kOnePair, kOnePair, kOnePair, kOnePair};
        multiply<__nv_bfloat16>(inputs[chain], kOnes, x, y);
      }
    }
  }
  if constexpr (kTurns == 1) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      products[0][i] += products[1][i];
      if constexpr (kHasOffsets<kPacking>) inputs[0][i] += inputs[1][i];
    }
  }
  // A thread has columns 2 four and 2 four + 1: groups of one row that follow each other.
  const SuperScales scales = read_super_scales<kPacking>(super);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int group = turn * kColumns + 2 * four % kColumns;
    const int tile = group / (kSixteen ? 4 : 2);
    const TileScales<kPacking> of_tile = read_scales<kPacking>(super, tile);
    float(&to)[2] = sums.of[0][turn % RowSums<kRows>::kShares];
    if constexpr (kSixteen) {
      const GroupScales by = group_scales<kPacking>(of_tile, scales, group % 4 / 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i / 2] += by.scale[i % 2][i / 2] * products[turn][i];
    } else {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        const GroupScales by = group_scales<kPacking>(of_tile, scales, second);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          add_scaled<kPacking>(to[i], by.scale[0][i], by.offset[i], products[turn][i * 2 + second],
                               inputs[kHasOffsets<kPacking> ? turn : 0][i * 2 + second]);
        }
      }
    }
  }
}

/// Columns are eight rows; those behind the last repeat the first.
template <Packing kPacking, int kRows>
__device__ void add_super_of_rows(const std::byte* super, const RowInputs& in, const Widening& widening,
                                  RowSums<kRows>& sums) {
  constexpr bool kSixteen = kPacking.scales == Scales::super_signed;
  constexpr int kTiles = RowSums<kRows>::kTiles;
  constexpr int kShares = RowSums<kRows>::kShares;
  constexpr int kAtOnce = kTiles == 1 ? 4 : kTiles == 2 ? 2 : 1;  // more rows have enough to do beside each other
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Bf16* rows[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int row = n * 8 + lane / 4;
    rows[n] = in.from + static_cast<std::size_t>(row < in.rows ? row : 0) * in.width + (kSixteen ? 4 : 8) * (lane % 4);
  }
  const SuperScales scales = read_super_scales<kPacking>(super);
#pragma unroll kAtOnce
  for (int tile = 0; tile < 4; ++tile) {
    const TileIntegers<kPacking> now = read_integers<kPacking>(super, tile);
    const TileScales<kPacking> of_tile = read_scales<kPacking>(super, tile);
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      const int input = tile * 64 + group * 32;
      const int first = input < in.left ? input : 0;  // behind the last input scales are zero
      uint4 values[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if constexpr (kSixteen) {
          const uint2 a = *reinterpret_cast<const uint2*>(rows[n] + first);
          const uint2 b = *reinterpret_cast<const uint2*>(rows[n] + first + 16);
          values[n] = make_uint4(a.x, a.y, b.x, b.y);
        } else {
          values[n] = *reinterpret_cast<const uint4*>(rows[n] + first);
        }
      }
      std::uint32_t weights[2][4];
      widen_integers<kPacking, kHasOffsets<kPacking>>(now, group * 2, widening, weights[0]);
      widen_integers<kPacking, kHasOffsets<kPacking>>(now, group * 2 + 1, widening, weights[1]);
      const GroupScales by = group_scales<kPacking>(of_tile, scales, group);
      const int share = kShares == 1 ? 0 : kSixteen ? tile % 2 * 2 + group : tile;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        float products[4] = {};
        float others[4] = {};  // kSixteen: of the other step; with offsets: sums of the inputs
        multiply<__nv_bfloat16>(products, weights[0], values[n].x, values[n].y);
        multiply<__nv_bfloat16>(kSixteen ? others : products, weights[1], values[n].z, values[n].w);
        if constexpr (kHasOffsets<kPacking>) {
          constexpr std::uint32_t kOnes[4] = {kOnePair, kOnePair, kOnePair, kOnePair};
          multiply<__nv_bfloat16>(others, kOnes, values[n].x, values[n].y);
          multiply<__nv_bfloat16>(others, kOnes, values[n].z, values[n].w);
        }
        float(&to)[4] = sums.of[n][share];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          add_scaled<kPacking>(to[i], by.scale[0][i / 2], by.offset[i / 2], products[i], others[i]);
          if constexpr (kSixteen) to[i] += by.scale[1][i / 2] * others[i];
        }
      }
    }
  }
}

/// A matrix, and what it is multiplied by.
struct ProductShape {
  const Bf16* in;  ///< [rows, inputs]
  int inputs, rows;
  int supers, block_rows;
};

/// Block rows whose sums are added up at a time: threads meet once for all of them.
template <int kRows>
inline constexpr int kRowsAtOnce = kRows <= 2 ? 4 / kRows : 1;

/// Places for sums: two where they are small, so that those of one time are read while the next are made.
template <Packing kPacking, int kRows>
inline constexpr int kSumPlaces = kRows <= (kPacking.in_rows() ? 4 : 8) ? 2 : 1;

/// Floats in shared memory for the sums of so many warps.
template <Packing kPacking, int kRows>
constexpr int sum_floats(int warps) {
  return kSumPlaces<kPacking, kRows> * kRowsAtOnce<kRows> * warps * kRows * kPackedRows;
}

/// A warp's super blocks, and which comes next; where the block's next sums go.
struct Ring {
  std::byte* begin;
  int stage = 0, place = 0;
};

/// The block's product of block rows `first`, `first + gridDim.x` and so on. Its warps divide the super blocks of a
/// row, which lie in each one's ring of kStages; ask(stage) asks for one more of those to come. prepare() runs once,
/// while the first inputs come; the threads meet before what it wrote is read.
/// end(row, output, sum, counts, looked) takes the sums, 16 neighbouring threads those of a row; whole warps call it.
/// `counts`: it is a row and an output that there are, or might be. `looked` is look(row, output), where it counts:
/// kLooks asks for the first of a thread before the sums are made, so that it is there when they are.
template <Packing kPacking, int kRows, int kStages, bool kLooks, class Ask, class Prepare, class Look, class End>
__device__ void multiply_block_rows(const ProductShape& of, int first, int warps, const Widening& widening, Ring& ring,
                                    float* all, const Ask& ask, const Prepare& prepare, const Look& look,
                                    const End& end) {
  constexpr int kOfWarp = kRows * kPackedRows;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto inputs_of = [&](int super) {
    return RowInputs{of.in + super * kPackedInputs, of.inputs, of.inputs - super * kPackedInputs, of.rows};
  };
  SuperInputs<kPacking, kRows> now;
  if (first < of.block_rows && warp < of.supers) now.load(inputs_of(warp));
  prepare();
  const int step = static_cast<int>(gridDim.x);
  const int of_row = (of.rows * kPackedRows + 31) / 32 * 32;  // whole warps
  const int thread = static_cast<int>(threadIdx.x);
  for (int begin = first; begin < of.block_rows; begin += kRowsAtOnce<kRows> * step) {
    decltype(look(0, 0)) looked{};
    if constexpr (kLooks) {
      const int time = thread / of_row, at = thread % of_row;
      if (time < kRowsAtOnce<kRows> && begin + time * step < of.block_rows && at / kPackedRows < of.rows) {
        looked = look(at / kPackedRows, (begin + time * step) * kPackedRows + at % kPackedRows);
      }
    }
    float* const sums_of_time = all + ring.place * (kRowsAtOnce<kRows> * warps * kOfWarp);
    if constexpr (kSumPlaces<kPacking, kRows> == 2) ring.place ^= 1;
    int times = 0;
    for (int block_row = begin; times < kRowsAtOnce<kRows> && block_row < of.block_rows; block_row += step, ++times) {
      RowSums<kRows> sums;
      for (int super = warp; super < of.supers; super += warps) {
        SuperInputs<kPacking, kRows> next;
        next.load(inputs_of(super + warps < of.supers ? super + warps : warp));
        wait_copies<kStages - 1>();
        __syncwarp();
        const std::byte* const at = ring.begin + ring.stage * SuperBytes<kPacking>::kPlace +
                                    place_offset<kPacking>(block_row * of.supers + super);
        if constexpr (RowSums<kRows>::kGroups) {
          add_super_of_groups<kPacking>(at, now, widening, sums);
        } else {
          add_super_of_rows<kPacking>(at, inputs_of(super), widening, sums);
        }
        now = next;
        __syncwarp();
        ask(ring.stage);
        ring.stage = ring.stage + 1 == kStages ? 0 : ring.stage + 1;
      }
      if (kSumPlaces<kPacking, kRows> == 1 && begin != first) __syncthreads();  // the sums before are read
      sums.store(sums_of_time + (times * warps + warp) * kOfWarp);
    }
    __syncthreads();
    // The warps' sums, added in their order.
    for (int i = thread; i < times * of_row; i += static_cast<int>(blockDim.x)) {
      const int time = i / of_row, at = i % of_row;
      const int row = at / kPackedRows;
      const bool counts = row < of.rows;
      const float* const from = sums_of_time + time * (warps * kOfWarp) + at;
      float sum = 0;
      for (int w = 0; w < warps; ++w) sum += counts ? from[w * kOfWarp] : 0.0F;
      const int output = (begin + time * step) * kPackedRows + at % kPackedRows;
      if (counts && (!kLooks || i != thread)) looked = look(row, output);
      end(row, output, sum, counts, looked);
    }
  }
}

/// The smallest kRows with room for so many.
constexpr int rows_class(int rows) {
  return rows <= 2 ? rows : rows <= 4 ? 4 : rows <= 8 ? 8 : rows <= 16 ? 16 : 32;
}

/// Calls function<kRows>() for so many rows.
template <class Function>
auto with_rows(int rows, Function&& function) {
  switch (rows_class(rows)) {
    case 1:
      return function.template operator()<1>();
    case 2:
      return function.template operator()<2>();
    case 4:
      return function.template operator()<4>();
    case 8:
      return function.template operator()<8>();
    case 16:
      return function.template operator()<16>();
    default:
      return function.template operator()<32>();
  }
}

}  // namespace glimpse::kernels::cuda
