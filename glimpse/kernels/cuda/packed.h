// Matrices of quantised weights in the memory of a GPU: the integers and scales of GGUF's blocks, in the order in which
// tensor cores take them. Nothing is rounded anew. Plain C++ that device code reads too; any thread.
//
// A block row is 16 outputs, a super block 256 inputs of one: the rest of a last one is zeros. A super block is four
// tiles of 64 inputs, a tile four steps of 16: the products of m16n8k16. A thread of a warp holds eight values of a
// step: of outputs r = lane / 4 and r + 8, four neighbouring inputs each. Its low words have four bits of each value,
// its high words the fifth and sixth; or its low words have all eight. The words of a super block follow each other.
//
// bf16 is not packed: its words are the rows of the matrix, one after the other, so that other kernels read them too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "glimpse/kernels/tables.h"

namespace glimpse::kernels::cuda {

using Bf16 = std::uint16_t;  ///< the bits of one
template <class T>
using DevicePointer = Pointer<T, Place::device>;

/// What an integer q is multiplied by. d, e, m are f16.
enum class Scales : std::uint8_t {
  block,         ///< d q; a d for 32 inputs
  block_offset,  ///< d q + m; a d and an m for 32 inputs
  super_offset,  ///< d s q - e t; d and e for 256 inputs, bytes s and t for 32 of them
  super_signed,  ///< d s q; d for 256 inputs, a signed byte s for 16 of them
  none,          ///< bf16
};

struct Packing {
  int bits = 4;  ///< 4, 5, 6 or 8 of an integer; 16 of bf16
  Scales scales = Scales::block;

  constexpr bool in_rows() const { return scales == Scales::none; }
  /// Integers are stored with this much added, so that none is negative.
  constexpr int zero() const {
    return scales == Scales::block ? 1 << (bits - 1) : scales == Scales::super_signed ? 32 : 0;
  }
  /// 32-bit words that a thread has of a tile: of the low bits, and of those above.
  constexpr int low_words() const { return bits < 8 ? 4 : bits; }
  constexpr int high_words() const { return bits == 5 ? 1 : bits == 6 ? 2 : 0; }
  friend bool operator==(const Packing&, const Packing&) = default;
};

inline constexpr Packing kBf16Rows{16, Scales::none};
inline constexpr int kPackedRows = 16, kPackedInputs = 256;

/// Where a value lies in its super block.
struct PackedPlace {
  int tile, lane, step;  ///< of four, of 32, of four
  int half, pair;        ///< which of two neighbours, and which of a step's four pairs
};

constexpr PackedPlace packed_place(Scales scales, int row, int input) {
  const int in_block = input % 32;
  // The inputs of a step share a scale: 16 of them, where 16 have one, else every other four.
  const bool sixteen = scales == Scales::super_signed;
  const int step = sixteen ? in_block / 16 : in_block / 4 % 2;
  const int column = sixteen ? in_block % 16 / 4 : in_block / 8;
  const int pair = row / 8 + 2 * (input % 4 / 2);
  const int half = input % 2;
  return {input / 64, row % 8 * 4 + column, input % 64 / 32 * 2 + step, half, pair};
}

/// Sizes and places in 32-bit words.
struct PackedLayout {
  Packing packing;
  int outputs = 0, inputs = 0;

  constexpr std::size_t block_rows() const {
    return static_cast<std::size_t>((outputs + kPackedRows - 1) / kPackedRows);
  }
  constexpr std::size_t supers() const {
    return static_cast<std::size_t>((inputs + kPackedInputs - 1) / kPackedInputs);
  }
  /// Of one super block.
  constexpr std::size_t low_words() const { return 128 * static_cast<std::size_t>(packing.low_words()); }
  constexpr std::size_t high_words() const { return 128 * static_cast<std::size_t>(packing.high_words()); }
  constexpr std::size_t scale_words() const { return packing.in_rows() ? 0 : 64; }
  constexpr std::size_t more_words() const {
    if (packing.scales == Scales::block || packing.in_rows()) return 0;
    return packing.scales == Scales::block_offset ? 64 : 16;
  }
  constexpr std::size_t high() const { return low_words(); }
  constexpr std::size_t scales() const { return high() + high_words(); }
  constexpr std::size_t more() const { return scales() + scale_words(); }
  constexpr std::size_t super_words() const { return more() + more_words(); }
  constexpr std::size_t words() const {
    if (packing.in_rows()) return static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs) / 2;
    return block_rows() * supers() * super_words();
  }

  /// Of a value's low bits in its super block: the word, the first of them there, and how many.
  constexpr std::size_t low_word(const PackedPlace& at) const {
    if (packing.bits < 8) return static_cast<std::size_t>(at.tile * 128 + at.lane * 4 + at.step);
    const int of_lane = at.step * 2 + at.pair / 2;
    return static_cast<std::size_t>(at.tile * 256 + of_lane / 4 * 128 + at.lane * 4 + of_lane % 4);
  }
  constexpr int low_shift(const PackedPlace& at) const {
    return 16 * at.half + (packing.bits < 8 ? 4 * at.pair : 8 * (at.pair % 2));
  }
  constexpr int low_bits() const { return packing.bits < 8 ? 4 : 8; }
  /// Likewise of its high bits, where there are high words.
  constexpr std::size_t high_word(const PackedPlace& at) const {
    const int of_lane = at.tile * packing.high_words() + at.step * packing.high_words() / 4;
    return high() + static_cast<std::size_t>(of_lane / 4 * 128 + at.lane * 4 + of_lane % 4);
  }
  constexpr int high_shift(const PackedPlace& at) const {
    const int bits = packing.bits - 4;
    const int values = packing.high_words() == 1 ? at.step * 4 : at.step % 2 * 4;
    return (values + at.pair) * bits + 16 * at.half;
  }

  /// The integer of a place, of the super block that begins at `super`.
  template <class Word>
  constexpr std::uint32_t integer(const Word* super, const PackedPlace& at) const {
    std::uint32_t q = super[low_word(at)] >> low_shift(at) & ((1U << low_bits()) - 1U);
    if (packing.high_words() > 0) {
      q |= (super[high_word(at)] >> high_shift(at) & ((1U << (packing.bits - 4)) - 1U)) << 4;
    }
    return q;
  }
};

/// A matrix [outputs, inputs] on the device, or in the host's memory.
template <Place place>
struct Packed {
  PackedLayout layout;
  Pointer<const std::uint32_t, place> words;  ///< [layout.words()], aligned to 16 bytes
};

}  // namespace glimpse::kernels::cuda
