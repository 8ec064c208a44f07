#include "glimpse/exec/cuda/pack.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "glimpse/base/error.h"

namespace glimpse::exec::cuda {
namespace {

using namespace kernels::cuda;  // NOLINT(google-build-using-namespace): the layout, word by word

constexpr std::size_t kSuper = kPackedInputs;
constexpr std::size_t kBlock = 32;

/// A super block of one output: integers from 0 on, scales as in the packed words.
struct Row {
  std::array<std::uint8_t, kSuper> integers{};
  std::array<std::uint16_t, 8> scales{}, offsets{};  ///< of 32 inputs
  std::array<std::uint8_t, 16> bytes{};              ///< of a super block's parts
  std::uint16_t d = 0, e = 0;
};

std::uint16_t f16_at(const std::uint8_t* from) {
  return static_cast<std::uint16_t>(from[0] | from[1] << 8);
}
/// Integers stand in pairs in GGUF's blocks of 32: the low halves of 16 bytes, then the high ones.
void take_halves(const std::uint8_t* from, std::uint8_t* to) {
  for (std::size_t i = 0; i < 16; ++i) {
    to[i] = from[i] & 15U;
    to[i + 16] = from[i] >> 4;
  }
}
void add_fifth_bits(const std::uint8_t* from, std::uint8_t* to) {
  for (std::size_t i = 0; i < kBlock; ++i) {
    to[i] = static_cast<std::uint8_t>(to[i] | (from[i / 8] >> i % 8 & 1U) << 4);
  }
}

void read_q4(const std::uint8_t* from, std::size_t block, bool offset, Row& to) {
  to.scales[block] = f16_at(from);
  if (offset) to.offsets[block] = f16_at(from + 2);
  take_halves(from + (offset ? 4 : 2), to.integers.data() + block * kBlock);
}
void read_q5(const std::uint8_t* from, std::size_t block, bool offset, Row& to) {
  to.scales[block] = f16_at(from);
  if (offset) to.offsets[block] = f16_at(from + 2);
  const std::uint8_t* const fifth = from + (offset ? 4 : 2);
  std::uint8_t* const integers = to.integers.data() + block * kBlock;
  take_halves(fifth + 4, integers);
  add_fifth_bits(fifth, integers);
}
void read_q8(const std::uint8_t* from, std::size_t block, Row& to) {
  to.scales[block] = f16_at(from);
  for (std::size_t i = 0; i < kBlock; ++i) {
    to.integers[block * kBlock + i] = static_cast<std::uint8_t>(from[2 + i] ^ 0x80U);
  }
}

/// The eight scales and eight offsets of six bits in 12 bytes.
void read_six_bits(const std::uint8_t* from, Row& to) {
  for (std::size_t i = 0; i < 4; ++i) {
    to.bytes[i] = from[i] & 63U;
    to.bytes[8 + i] = from[4 + i] & 63U;
    to.bytes[4 + i] = static_cast<std::uint8_t>((from[8 + i] & 15U) | (from[i] >> 6) << 4);
    to.bytes[12 + i] = static_cast<std::uint8_t>(from[8 + i] >> 4 | (from[4 + i] >> 6) << 4);
  }
}
/// Of 64 integers each, 32 bytes: the low halves first.
void read_q4_k(const std::uint8_t* from, Row& to) {
  to.d = f16_at(from);
  to.e = f16_at(from + 2);
  read_six_bits(from + 4, to);
  for (std::size_t i = 0; i < kSuper; ++i) {
    const std::uint8_t both = from[16 + i / 64 * 32 + i % 32];
    to.integers[i] = i % 64 < 32 ? both & 15U : both >> 4;
  }
}
void read_q5_k(const std::uint8_t* from, Row& to) {
  to.d = f16_at(from);
  to.e = f16_at(from + 2);
  read_six_bits(from + 4, to);
  for (std::size_t i = 0; i < kSuper; ++i) {
    const std::uint8_t both = from[48 + i / 64 * 32 + i % 32];
    const auto fifth = static_cast<std::uint8_t>(from[16 + i % 32] >> i / 32 & 1U);
    to.integers[i] = static_cast<std::uint8_t>((i % 64 < 32 ? both & 15U : both >> 4) | fifth << 4);
  }
}
/// Of 128 integers each, 64 bytes with their low halves and 32 with the two bits above, four in a byte.
void read_q6_k(const std::uint8_t* from, Row& to) {
  for (std::size_t i = 0; i < kSuper; ++i) {
    const std::size_t large = i / 128, quarter = i % 128 / 32, at = i % 32;
    const std::uint8_t low = from[large * 64 + quarter % 2 * 32 + at];
    const std::uint8_t high = from[128 + large * 32 + at];
    to.integers[i] = static_cast<std::uint8_t>((quarter < 2 ? low & 15U : low >> 4) | (high >> 2 * quarter & 3U) << 4);
  }
  for (std::size_t i = 0; i < 16; ++i) to.bytes[i] = static_cast<std::uint8_t>(from[192 + i] ^ 0x80U);
  to.d = f16_at(from + 208);
}

/// One super block of a row in the file, or what there is of it.
Row read_super(ggml_type type, const std::uint8_t* row, std::size_t super, std::size_t inputs) {
  Row to;
  const std::size_t bytes = ggml_type_size(type);
  if (ggml_blck_size(type) == kPackedInputs) {
    const std::uint8_t* const from = row + super * bytes;
    if (type == GGML_TYPE_Q4_K) read_q4_k(from, to);
    if (type == GGML_TYPE_Q5_K) read_q5_k(from, to);
    if (type == GGML_TYPE_Q6_K) read_q6_k(from, to);
    return to;
  }
  const std::size_t blocks = std::min(kSuper, inputs - super * kSuper) / kBlock;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::uint8_t* const from = row + (super * 8 + block) * bytes;
    if (type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q4_1) read_q4(from, block, type == GGML_TYPE_Q4_1, to);
    if (type == GGML_TYPE_Q5_0 || type == GGML_TYPE_Q5_1) read_q5(from, block, type == GGML_TYPE_Q5_1, to);
    if (type == GGML_TYPE_Q8_0) read_q8(from, block, to);
  }
  return to;
}

std::uint32_t pair_of(std::uint16_t low, std::uint16_t high) {
  return low | static_cast<std::uint32_t>(high) << 16;
}

/// The words of one super block of 16 outputs.
void write_super(const PackedLayout& layout, const std::array<Row, kPackedRows>& rows, std::size_t number,
                 std::span<std::uint32_t> words) {
  std::uint32_t* const super = words.data() + number * layout.super_words();
  std::uint32_t* const scales = super + layout.scales();
  std::uint32_t* const more = super + layout.more();
  std::fill_n(super, layout.scales(), 0U);
  for (int row = 0; row < kPackedRows; ++row) {
    const Row& from = rows[static_cast<std::size_t>(row)];
    for (int input = 0; input < kPackedInputs; ++input) {
      const PackedPlace place = packed_place(layout.packing.scales, row, input);
      const std::uint32_t q = from.integers[static_cast<std::size_t>(input)];
      super[layout.low_word(place)] |= (q & ((1U << layout.low_bits()) - 1U)) << layout.low_shift(place);
      if (layout.packing.high_words() > 0) super[layout.high_word(place)] |= (q >> 4) << layout.high_shift(place);
    }
    const auto at = static_cast<std::size_t>(row);
    for (std::size_t i = 0; i < 4; ++i) {
      if (layout.packing.scales == Scales::block || layout.packing.scales == Scales::block_offset) {
        scales[at * 4 + i] = pair_of(from.scales[2 * i], from.scales[2 * i + 1]);
      } else {
        std::memcpy(&scales[at * 4 + i], &from.bytes[4 * i], 4);
      }
      if (layout.packing.scales == Scales::block_offset) {
        more[at * 4 + i] = pair_of(from.offsets[2 * i], from.offsets[2 * i + 1]);
      }
    }
    if (layout.more_words() == 16) more[at] = pair_of(from.d, from.e);
  }
}

}  // namespace

std::optional<Packing> packing_of(const model::TensorInfo& tensor) {
  switch (static_cast<ggml_type>(tensor.type)) {
    case GGML_TYPE_Q4_0:
      return Packing{4, Scales::block};
    case GGML_TYPE_Q4_1:
      return Packing{4, Scales::block_offset};
    case GGML_TYPE_Q5_0:
      return Packing{5, Scales::block};
    case GGML_TYPE_Q5_1:
      return Packing{5, Scales::block_offset};
    case GGML_TYPE_Q8_0:
      return Packing{8, Scales::block};
    case GGML_TYPE_Q4_K:
      return Packing{4, Scales::super_offset};
    case GGML_TYPE_Q5_K:
      return Packing{5, Scales::super_offset};
    case GGML_TYPE_Q6_K:
      return Packing{6, Scales::super_signed};
    default:
      return {};
  }
}

void pack(const PackRows& rows, std::span<std::uint32_t> words) {
  const PackedLayout& layout = rows.layout;
  check(packing_of(rows.tensor) == layout.packing && rows.tensor.shape[0] == layout.inputs, "a tensor of the matrix");
  check(words.size() == layout.words() && rows.at + rows.last <= layout.block_rows(), "all words of the matrix");
  const auto type = static_cast<ggml_type>(rows.tensor.type);
  const auto inputs = static_cast<std::size_t>(layout.inputs);
  const auto outputs = static_cast<std::size_t>(rows.tensor.shape[1]);
  const std::size_t row_bytes = ggml_row_size(type, layout.inputs);
  const std::size_t own_rows = rows.beside == nullptr ? kPackedRows : kPackedRows / 2;
  std::array<Row, kPackedRows> read;
  for (std::size_t block_row = rows.first; block_row < rows.last; ++block_row) {
    for (std::size_t super = 0; super < layout.supers(); ++super) {
      for (std::size_t row = 0; row < kPackedRows; ++row) {
        const model::TensorInfo& from = row < own_rows ? rows.tensor : *rows.beside;
        const std::size_t output = block_row * own_rows + row % own_rows;
        const auto* const data = reinterpret_cast<const std::uint8_t*>(from.data);
        read[row] = output < outputs ? read_super(type, data + output * row_bytes, super, inputs) : Row{};
      }
      write_super(layout, read, (rows.at + block_row) * layout.supers() + super, words);
    }
  }
}

}  // namespace glimpse::exec::cuda
