#include "glimpse/evaluate/tasks/word_lists.h"

#include <fmt/format.h>

#include <numbers>
#include <set>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/tasks/random.h"
#include "glimpse/evaluate/tasks/vocabulary.h"

namespace glimpse::evaluate {
namespace {

constexpr int kCodedLetters = 6;

template <class Item>
void shuffle(std::vector<Item>& items, Random& random) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[random.below(i)]);
}

std::string coded_word(Random& random) {
  std::string word;
  for (int i = 0; i < kCodedLetters; ++i) word += static_cast<char>('a' + random.below(26));
  return word;
}

}  // namespace

WordList common_words(std::int64_t others, bool is_short, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::string> words(vocabulary().begin(), vocabulary().end());
  shuffle(words, random);
  const auto count = static_cast<std::size_t>(kCommonWords + others);
  constexpr std::size_t kFirst = kCommonWords;  // a pair holds no common word
  const std::size_t single = words.size() - kFirst;
  check(count <= single * single, "the vocabulary has words enough");
  // Pairs of a word and the one that is `step` behind it, in the shuffled order, are all different.
  for (std::size_t step = 1; words.size() < count; ++step) {
    for (std::size_t i = 0; i < single && words.size() < count; ++i) {
      words.push_back(words[kFirst + i] + "-" + words[kFirst + (i + step) % single]);
    }
  }
  words.resize(count);
  WordList list;
  list.wanted.assign(words.begin(), words.begin() + kCommonWords);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < count; ++i) {
    const bool common = i < static_cast<std::size_t>(kCommonWords);
    const int times = common ? (is_short ? 6 : 30) : (is_short ? 1 : 3);
    order.insert(order.end(), static_cast<std::size_t>(times), i);
  }
  shuffle(order, random);
  for (std::size_t i = 0; i < order.size(); ++i) {
    list.text += fmt::format("{}{}. {}", i == 0 ? "" : " ", i + 1, words[order[i]]);
  }
  return list;
}

WordList frequent_words(std::int64_t words, std::int64_t ranks, std::uint64_t seed) {
  Random random(seed);
  constexpr double kZeta = std::numbers::pi * std::numbers::pi / 6;
  std::set<std::string> known;
  std::vector<std::string> by_rank{"..."};
  while (static_cast<std::int64_t>(by_rank.size()) < ranks) {
    std::string word = coded_word(random);
    if (known.insert(word).second) by_rank.push_back(std::move(word));
  }
  check(by_rank.size() > kFrequentWords, "there are ranks enough");
  std::vector<std::size_t> order;
  for (std::size_t rank = 1; rank <= by_rank.size(); ++rank) {
    const auto k = static_cast<double>(rank);
    const auto times = static_cast<std::size_t>(static_cast<double>(words) / (kZeta * k * k));
    order.insert(order.end(), times, rank - 1);
  }
  shuffle(order, random);
  WordList list;
  list.wanted.assign(by_rank.begin() + 1, by_rank.begin() + 1 + kFrequentWords);
  for (const std::size_t at : order) list.text += (list.text.empty() ? "" : " ") + by_rank[at];
  return list;
}

}  // namespace glimpse::evaluate
