#include "glimpse/evaluate/tasks/metric.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"

namespace glimpse::evaluate {
namespace {

constexpr std::array<std::string_view, 6> kMetrics{"words", "all", "any", "exact", "f1", "rouge_l"};

using Words = std::vector<std::string>;

unsigned char byte(char c) {
  return static_cast<unsigned char>(c);
}

bool is_space(char c) {
  return std::isspace(byte(c)) != 0;
}

std::string lower(std::string_view text) {
  std::string small(text);
  std::transform(small.begin(), small.end(), small.begin(), [](char c) { return std::tolower(byte(c)); });
  return small;
}

/// Lower case words with one space between, one before the first and one after the last; what is no letter or digit
/// parts words.
std::string plain(std::string_view text) {
  std::string words = " ";
  for (const char c : text) {
    if (std::isalnum(byte(c)) != 0) {
      words += static_cast<char>(std::tolower(byte(c)));
    } else if (words.back() != ' ') {
      words += ' ';
    }
  }
  return words.back() == ' ' ? words : words + " ";
}

Words split(std::string_view text) {
  Words words(1);
  for (const char c : text) {
    if (!is_space(c)) {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

/// LongBench's normalize_answer.
Words normal_words(std::string_view text) {
  std::string kept;
  for (const char c : lower(text)) {
    if (std::ispunct(byte(c)) == 0) kept += c;
  }
  Words words = split(kept);
  std::erase_if(words, [](const std::string& word) { return word == "a" || word == "an" || word == "the"; });
  return words;
}

double f_measure(double common, std::size_t answer, std::size_t wanted) {
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(answer), recall = common / static_cast<double>(wanted);
  return 2 * precision * recall / (precision + recall);
}

double f1(std::string_view answer, std::string_view wanted) {
  const Words got = normal_words(answer), want = normal_words(wanted);
  std::map<std::string, std::int64_t> left;
  for (const std::string& word : want) ++left[word];
  std::int64_t common = 0;
  for (const std::string& word : got) {
    if (left[word]-- > 0) ++common;
  }
  return f_measure(static_cast<double>(common), got.size(), want.size());
}

double rouge_l(std::string_view answer, std::string_view wanted) {
  const Words got = split(answer), want = split(wanted);
  std::vector<std::int64_t> row(want.size() + 1,
                                0);  // longest common subsequence of what is read so far and want[0..j)
  for (const std::string& word : got) {
    std::int64_t before = 0;
    for (std::size_t j = 0; j < want.size(); ++j) {
      const std::int64_t above = row[j + 1];
      row[j + 1] = word == want[j] ? before + 1 : std::max(above, row[j]);
      before = above;
    }
  }
  return f_measure(static_cast<double>(row.back()), got.size(), want.size());
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

template <class One>
double best(const std::vector<std::string>& wanted, const One& one) {
  double most = 0;
  for (const std::string& part : wanted) most = std::max(most, static_cast<double>(one(part)));
  return most;
}

double share_held(std::string_view answer, const std::vector<std::string>& wanted) {
  const std::string text = lower(answer);
  const auto held = std::count_if(wanted.begin(), wanted.end(),
                                  [&](const std::string& part) { return text.find(lower(part)) != std::string::npos; });
  return static_cast<double>(held) / static_cast<double>(wanted.size());
}

}  // namespace

std::string_view name(Metric metric) {
  return kMetrics[static_cast<std::size_t>(metric)];
}

Metric parse_metric(std::string_view text) {
  const auto found = std::find(kMetrics.begin(), kMetrics.end(), text);
  if (found == kMetrics.end()) throw UserError(unknown_name("metric", text, kMetrics));
  return static_cast<Metric>(found - kMetrics.begin());
}

double score(Metric metric, std::string_view answer, const std::vector<std::string>& wanted) {
  if (wanted.empty()) return 0;
  switch (metric) {
    case Metric::words:
      return share_found(answer, wanted);
    case Metric::all:
      return share_held(answer, wanted);
    case Metric::any:
      return share_held(answer, wanted) > 0 ? 1 : 0;
    case Metric::exact:
      return best(wanted, [&](const std::string& part) { return trimmed(answer) == trimmed(part); });
    case Metric::f1:
      return best(wanted, [&](const std::string& part) { return f1(answer, part); });
    case Metric::rouge_l:
      break;
  }
  return best(wanted, [&](const std::string& part) { return rouge_l(answer, part); });
}

bool only_grows(Metric metric) {
  return metric == Metric::words || metric == Metric::all || metric == Metric::any;
}

double share_found(std::string_view answer, const std::vector<std::string>& wanted) {
  const std::string words = plain(answer);
  const auto found = std::count_if(wanted.begin(), wanted.end(), [&](const std::string& part) {
    return words.find(plain(part)) != std::string::npos;
  });
  return wanted.empty() ? 0 : static_cast<double>(found) / static_cast<double>(wanted.size());
}

}  // namespace glimpse::evaluate
