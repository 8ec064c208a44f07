// A grammar as llama.cpp writes it (GBNF), read into flat rules. A value, const after reading; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace glimpse::text {

/// A set of code points, as ranges that neither touch nor overlap, ascending, ends included.
struct CharSet {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges;
  bool has(std::uint32_t code_point) const;
  /// True where it has one of low to high.
  bool meets(std::uint32_t low, std::uint32_t high) const;
};

/// One step of an alternative. Alternatives lie one after the other, each closed by an `end`.
struct GrammarElement {
  enum class Kind : std::uint8_t { end, chars, rule } kind = Kind::end;
  std::uint32_t value = 0;  ///< of chars: index of a set; of a rule: its index
};

struct GrammarRules {
  std::vector<GrammarElement> elements;
  std::vector<std::vector<std::uint32_t>> alternatives;  ///< [rules] the first elements of each
  std::vector<CharSet> sets;
  std::uint32_t root = 0;
};

/// What a grammar may come to when its repetitions are written out.
inline constexpr std::size_t kMostGrammarElements = 1 << 19;

/// Reads GBNF as libllama does, but for elements that are tokens (<...>), which are refused. Throws UserError: no
/// grammar, rules that are not there, left recursion, more than kMostGrammarElements.
GrammarRules read_grammar(std::string_view gbnf);

}  // namespace glimpse::text
