// Model files from recipes: a string of bytes, each of which answers one question. No bytes left: the answer is 0,
// which is the plain one everywhere, so that the empty recipe is a good model. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/model/gguf_builder.h"

namespace glimpse::fuzz {

class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  /// 0 to count - 1; takes as many bytes as that needs.
  std::uint64_t below(std::uint64_t count);
  /// True for about one in `odds`; never where the bytes have ended.
  bool chance(std::uint64_t odds) { return below(odds) == odds - 1; }
  std::uint64_t bits();
  /// From a list of numbers that parsers stumble over, or any bits.
  std::uint64_t odd_number();

 private:
  std::span<const std::uint8_t> bytes_;
};

/// A tiny model: shapes, tensor types and weights that fit together, then edits that need not.
struct ModelRecipe {
  explicit ModelRecipe(Choices& choices);
  std::vector<std::byte> bytes;
};

}  // namespace glimpse::fuzz
