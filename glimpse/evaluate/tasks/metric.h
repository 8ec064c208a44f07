// How right an answer is, from 0 to 1. RULER's metrics (Hsieh et al., 2024, section 4) and LongBench's (Bai et al.,
// 2023, section 3), as their published programs compute them for English. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace glimpse::evaluate {

enum class Metric : std::uint8_t {
  words,    ///< share of what is wanted that the answer holds as whole words; white space, punctuation, case aside
  all,      ///< RULER's string_match_all: share of what is wanted that the answer holds, case aside
  any,      ///< RULER's string_match_part: 1 where it holds one of them, case aside
  exact,    ///< 1 where the answer, without white space around it, is one of them
  f1,       ///< LongBench's qa_f1: of the words, the best of what is wanted; articles and punctuation aside
  rouge_l,  ///< LongBench's rouge: F of the longest common subsequence of words, the best of what is wanted
};
std::string_view name(Metric metric);
/// Throws UserError with the nearest name.
Metric parse_metric(std::string_view text);

/// 0 where nothing is wanted.
double score(Metric metric, std::string_view answer, const std::vector<std::string>& wanted);

/// True for a metric by which more text cannot make a right answer wrong, but for a word that goes on.
bool only_grows(Metric metric);

/// Metric::words.
double share_found(std::string_view answer, const std::vector<std::string>& wanted);

}  // namespace glimpse::evaluate
