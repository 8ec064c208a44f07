#include "bench/retrieval_prompts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <random>
#include <set>
#include <span>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"

namespace glimpse::bench {
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
constexpr std::int64_t kLeastProse = 64;  // tokens
constexpr std::size_t kLeastSentences = 50;

/// The same numbers with any standard library, unlike std::uniform_int_distribution's.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  std::string_view of(std::span<const std::string_view> words) { return words[below(words.size())]; }
  std::string digits(int count) {  // the first is not 0
    std::string text(1, static_cast<char>('1' + below(9)));
    while (static_cast<int>(text.size()) < count) text += static_cast<char>('0' + below(10));
    return text;
  }
  std::string letters(int count) {
    std::string text;
    while (static_cast<int>(text.size()) < count) text += static_cast<char>('A' + below(26));
    return text;
  }

 private:
  std::mt19937_64 engine_;
};

/// What is asked, before sentences are around it.
struct Quiz {
  std::string before, after;            ///< directly around the haystack
  std::string left = " ", right = " ";  ///< around a statement
  std::vector<std::string> statements;  ///< in this order
  std::string question;
  std::vector<std::string> wanted;
};

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
  const auto& [key, number] = pairs[random.below(pairs.size())];
  quiz.question = fmt::format("What is the special magic number for {} mentioned in the provided text?", key);
  quiz.wanted = {number};
  return quiz;
}

Quiz variable_quiz(Random& random) {
  Quiz quiz;
  quiz.before = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  quiz.left = quiz.right = "\n";
  const std::string value = random.digits(5);
  std::set<std::string> names;
  while (static_cast<int>(quiz.wanted.size()) < kVariables) {
    const std::string name = random.letters(5);
    if (!names.insert(name).second) continue;
    quiz.statements.push_back(quiz.wanted.empty() ? fmt::format("VAR {} = {}", name, value)
                                                  : fmt::format("VAR {} = VAR {}", name, quiz.wanted.back()));
    quiz.wanted.push_back(name);
  }
  quiz.question = fmt::format("Find all variables that are assigned the value {} in the text above.", value);
  return quiz;
}

Quiz passkey_quiz(Random& random) {
  Quiz quiz;
  quiz.before = "This is a very long story book: <book> ";
  quiz.after = " </book>.";
  quiz.left = quiz.right = "\n\n";
  const std::size_t asked = random.below(kOrdinals.size());
  for (std::size_t i = 0; i < kOrdinals.size(); ++i) {
    std::vector<std::string_view> words;
    while (static_cast<int>(words.size()) < kPasskeyWords) words.push_back(random.of(kNato));
    const std::string key = fmt::format("{}", fmt::join(words, " "));
    quiz.statements.push_back(
        fmt::format("Remember this sequence of words, it's the {} passkey to the vault: {}", kOrdinals[i], key));
    if (i == asked) quiz.wanted = {key};
  }
  quiz.question =
      fmt::format("Based on the content of the book, what is the {} passkey to the vault?", kOrdinals[asked]);
  return quiz;
}

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

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
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

PromptMaker::PromptMaker(const text::Tokenizer& tokenizer, std::string_view filler) : tokenizer_(tokenizer) {
  for (std::size_t begin = 0; begin < filler.size();) {
    if (is_space(filler[begin])) {
      ++begin;
      continue;
    }
    std::size_t end = begin;
    bool ended = false;
    for (; end < filler.size() && !ended; ++end) {
      const bool stop = filler[end] == '.' || filler[end] == '?' || filler[end] == '!';
      std::size_t next = end + 1;
      while (stop && next < filler.size() && (filler[next] == '"' || filler[next] == '\'' || filler[next] == ')'))
        ++next;
      const bool gap = next < filler.size() && is_space(filler[next]);
      const bool paragraph = filler[end] == '\n' && end + 1 < filler.size() && filler[end + 1] == '\n';
      ended = (stop && gap) || paragraph;
      if (stop && gap) end = next - 1;
      if (paragraph) --end;
    }
    Sentence sentence;
    sentence.text = filler.substr(begin, end - begin);
    const std::size_t gap = end;
    while (end < filler.size() && is_space(filler[end])) ++end;
    sentence.gap = filler.substr(gap, end - gap);
    sentence.tokens =
        static_cast<std::int64_t>(tokenizer.encode(sentence.text + sentence.gap, text::Special::as_text, false).size());
    sentences_.push_back(std::move(sentence));
    begin = end;
  }
  if (sentences_.size() < kLeastSentences) {
    throw UserError(
        fmt::format("the filler has {} sentences; give prose with {} or more", sentences_.size(), kLeastSentences));
  }
}

std::vector<text::Token> PromptMaker::render(const std::string& content) const {
  if (tokenizer_.has_chat_template()) {
    const text::ChatMessage message{"user", content};
    return tokenizer_.apply_chat({&message, 1}, true);
  }
  return tokenizer_.encode(content + "\n", text::Special::as_text, true);
}

RetrievalPrompt PromptMaker::make(Task task, std::int64_t length, std::uint64_t seed) const {
  Random random(seed);
  const Quiz quiz = make_quiz(task, random);
  std::int64_t room =
      length - static_cast<std::int64_t>(render(quiz.before + quiz.after + "\n\n" + quiz.question).size());
  for (const std::string& statement : quiz.statements) {
    const std::string around = quiz.left + statement + quiz.right;
    room -= static_cast<std::int64_t>(tokenizer_.encode(around, text::Special::as_text, false).size());
  }
  if (room < kLeastProse) {
    throw UserError(fmt::format("a prompt of {} tokens leaves {} for prose around the statements of '{}'; give {} more",
                                length, room, name(task), kLeastProse - room));
  }
  std::vector<const Sentence*> prose;
  std::int64_t filled = 0;
  for (std::size_t at = random.below(sentences_.size()); filled + sentences_[at].tokens <= room;
       at = (at + 1) % sentences_.size()) {  // a short book starts again
    prose.push_back(&sentences_[at]);
    filled += sentences_[at].tokens;
  }
  std::vector<std::size_t> places;  // each before this sentence, at depths that are uniform
  for (std::size_t i = 0; i < quiz.statements.size(); ++i) places.push_back(random.below(prose.size() + 1));
  std::sort(places.begin(), places.end());

  RetrievalPrompt prompt;
  prompt.wanted = quiz.wanted;
  const auto write = [&] {
    std::string text = quiz.before, gap;
    std::size_t next = 0;
    for (std::size_t i = 0; i <= prose.size(); ++i) {
      for (; next < places.size() && places[next] == i; ++next) {
        text += (text == quiz.before ? "" : quiz.left) + quiz.statements[next];
        gap = quiz.right;
      }
      if (i == prose.size()) break;
      text += gap + prose[i]->text;
      gap = prose[i]->gap;
    }
    prompt.content = text + quiz.after + "\n\n" + quiz.question;
    prompt.tokens = render(prompt.content);
  };
  write();
  // Where texts meet, tokens may be a few more than the sum of the parts.
  while (static_cast<std::int64_t>(prompt.tokens.size()) > length && prose.size() > 1) {
    prose.pop_back();
    for (std::size_t& place : places) place = std::min(place, prose.size());
    write();
  }
  check(static_cast<std::int64_t>(prompt.tokens.size()) <= length, "a prompt keeps its length");
  return prompt;
}

}  // namespace glimpse::bench
