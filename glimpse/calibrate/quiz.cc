#include "glimpse/calibrate/quiz.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"

namespace glimpse::calibrate {
namespace {

constexpr std::array<std::string_view, 4> kTasks{"single", "multikey", "vt", "passkey"};
constexpr std::array<std::string_view, 10> kOrdinals{"first", "second",  "third",  "fourth", "fifth",
                                                     "sixth", "seventh", "eighth", "ninth",  "tenth"};
constexpr std::array<std::string_view, 26> kNato{
    "alpha",   "bravo", "charlie", "delta",  "echo",     "foxtrot", "golf",   "hotel",  "india",
    "juliett", "kilo",  "lima",    "mike",   "november", "oscar",   "papa",   "quebec", "romeo",
    "sierra",  "tango", "uniform", "victor", "whiskey",  "xray",    "yankee", "zulu"};
constexpr std::array<std::string_view, 32> kQualities{
    "brave",  "calm",  "bright",  "quiet",  "swift",  "gentle", "proud", "clever", "eager", "honest", "lively",
    "mellow", "noble", "patient", "quick",  "rapid",  "shy",    "tidy",  "vivid",  "warm",  "young",  "amber",
    "crisp",  "dusty", "early",   "frosty", "golden", "happy",  "icy",   "jolly",  "kind",  "lucky"};
constexpr std::array<std::string_view, 32> kThings{
    "otter",  "falcon", "maple",  "river",  "lantern", "badger", "cedar",  "comet",  "dolphin", "ember", "ferry",
    "garden", "harbor", "island", "jaguar", "kettle",  "ladder", "meadow", "needle", "orchid",  "panda", "quarry",
    "raven",  "saddle", "tiger",  "violin", "walnut",  "anchor", "beacon", "candle", "donkey",  "engine"};

constexpr int kVariables = 5;
constexpr int kKeys = 4;
constexpr int kPasskeyWords = 32;

Quiz number_quiz(int keys, Random& random) {
  Quiz quiz;
  quiz.before =
      "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you "
      "about the numbers afterwards.\n";
  std::set<std::string> names;
  std::vector<std::pair<std::string, std::string>> pairs;
  while (static_cast<int>(pairs.size()) < keys) {
    std::string key = fmt::format("{}-{}", random.of(kQualities), random.of(kThings));
    if (!names.insert(key).second) continue;
    pairs.emplace_back(std::move(key), random.digits(7));
    quiz.statements.push_back(
        fmt::format("One of the special magic numbers for {} is: {}.", pairs.back().first, pairs.back().second));
  }
  for (const auto& [key, number] : pairs) {
    quiz.questions.push_back(
        {fmt::format("What is the special magic number for {} mentioned in the provided text?", key), {number}});
  }
  quiz.asked = random.below(pairs.size());
  return quiz;
}

Quiz variable_quiz(Random& random) {
  Quiz quiz;
  quiz.before = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  quiz.left.assign(1, '\n');
  quiz.right = quiz.left;
  const std::string value = random.digits(5);
  std::set<std::string> names;
  std::vector<std::string> wanted;
  while (static_cast<int>(wanted.size()) < kVariables) {
    const std::string name = random.letters(5);
    if (!names.insert(name).second) continue;
    quiz.statements.push_back(wanted.empty() ? fmt::format("VAR {} = {}", name, value)
                                             : fmt::format("VAR {} = VAR {}", name, wanted.back()));
    wanted.push_back(name);
  }
  quiz.questions.push_back(
      {fmt::format("Find all variables that are assigned the value {} in the text above.", value), wanted});
  return quiz;
}

Quiz passkey_quiz(Random& random) {
  Quiz quiz;
  quiz.before = "This is a very long story book: <book> ";
  quiz.after = " </book>.";
  quiz.left = quiz.right = "\n\n";
  quiz.asked = random.below(kOrdinals.size());
  for (std::size_t i = 0; i < kOrdinals.size(); ++i) {
    std::vector<std::string_view> words;
    while (static_cast<int>(words.size()) < kPasskeyWords) words.push_back(random.of(kNato));
    const std::string key = fmt::format("{}", fmt::join(words, " "));
    quiz.statements.push_back(
        fmt::format("Remember this sequence of words, it's the {} passkey to the vault: {}", kOrdinals[i], key));
    quiz.questions.push_back(
        {fmt::format("Based on the content of the book, what is the {} passkey to the vault?", kOrdinals[i]), {key}});
  }
  return quiz;
}

/// Lower case words with one space between, one before the first and one after the last; what is no letter or digit
/// parts words.
std::string plain(std::string_view text) {
  std::string words = " ";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      words += static_cast<char>(std::tolower(byte));
    } else if (words.back() != ' ') {
      words += ' ';
    }
  }
  return words.back() == ' ' ? words : words + " ";
}

}  // namespace

Quiz make_quiz(Task task, Random& random) {
  switch (task) {
    case Task::single:
      return number_quiz(1, random);
    case Task::multikey:
      return number_quiz(kKeys, random);
    case Task::vt:
      return variable_quiz(random);
    case Task::passkey:
      break;
  }
  return passkey_quiz(random);
}

std::string_view name(Task task) {
  return kTasks[static_cast<std::size_t>(task)];
}

Task parse_task(std::string_view text) {
  const auto found = std::find(kTasks.begin(), kTasks.end(), text);
  if (found == kTasks.end()) throw UserError(unknown_name("task", text, kTasks));
  return static_cast<Task>(found - kTasks.begin());
}

double share_found(std::string_view answer, const std::vector<std::string>& wanted) {
  const std::string words = plain(answer);
  const auto found = std::count_if(wanted.begin(), wanted.end(), [&](const std::string& part) {
    return words.find(plain(part)) != std::string::npos;
  });
  return wanted.empty() ? 0 : static_cast<double>(found) / static_cast<double>(wanted.size());
}

}  // namespace glimpse::calibrate
