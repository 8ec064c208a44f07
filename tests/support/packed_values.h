// What packed weights mean, value by value, in the host's memory.
#pragma once

#include <cstdint>
#include <span>

#include "glimpse/base/dtype.h"
#include "glimpse/kernels/cuda/packed.h"

namespace glimpse::test {

inline double packed_value(const kernels::cuda::PackedLayout& layout, std::span<const std::uint32_t> words, int output,
                           int input) {
  using namespace kernels::cuda;  // NOLINT(google-build-using-namespace)
  const int row = output % kPackedRows, in_super = input % kPackedInputs;
  const PackedPlace place = packed_place(layout.packing.scales, row, in_super);
  const std::size_t number = static_cast<std::size_t>(output / kPackedRows) * layout.supers() +
                             static_cast<std::size_t>(input / kPackedInputs);
  const std::size_t begin = number * layout.super_words();
  const std::uint32_t q = layout.integer(words.data() + begin, place);
  const double value = static_cast<double>(q) - layout.packing.zero();
  const auto half = [&](std::size_t word, int i) {
    return static_cast<double>(float_from_f16(static_cast<std::uint16_t>(words[word] >> 16 * i)));
  };
  const auto byte = [&](std::size_t at, int i) {
    return static_cast<double>(words[at + static_cast<std::size_t>(i / 4)] >> 8 * (i % 4) & 255U);
  };
  const int group = in_super / 32;
  const std::size_t scales = begin + layout.scales() + static_cast<std::size_t>(row) * 4;
  const std::size_t offsets = begin + layout.more() + static_cast<std::size_t>(row) * 4;
  const std::size_t super = begin + layout.more() + static_cast<std::size_t>(row);
  const auto pair = static_cast<std::size_t>(group / 2);
  switch (layout.packing.scales) {
    case Scales::block:
      return half(scales + pair, group % 2) * value;
    case Scales::block_offset:
      return half(scales + pair, group % 2) * value + half(offsets + pair, group % 2);
    case Scales::super_offset:
      return half(super, 0) * byte(scales, group) * value - half(super, 1) * byte(scales, 8 + group);
    case Scales::super_signed:
      return half(super, 0) * (byte(scales, in_super / 16) - 128) * value;
    case Scales::none:  // its words are not packed
      break;
  }
  return 0;
}

}  // namespace glimpse::test
