#include "glimpse/evaluate/tasks/quiz.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/base/suggest.h"
#include "glimpse/evaluate/tasks/prose.h"

namespace glimpse::evaluate {
namespace {

constexpr std::array<std::string_view, 10> kTasks{"single",     "multikey", "vt",  "passkey", "multivalue",
                                                  "multiquery", "cwe",      "fwe", "qa",      "copy"};
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

constexpr std::array<std::string_view, 24> kFirstNames{
    "Marta", "Oskar", "Ingrid", "Pavel", "Lucia", "Henrik", "Amara", "Tomas",  "Yuki",  "Rafael", "Nadia", "Viktor",
    "Elena", "Bruno", "Sofia",  "Anton", "Clara", "Dmitri", "Leila", "Samuel", "Greta", "Hugo",   "Irina", "Mateo"};
constexpr std::array<std::string_view, 24> kLastNames{
    "Lindqvist", "Novak",    "Moreau", "Tanaka",  "Okafor",   "Petrov", "Garcia",   "Jensen",
    "Kowalski",  "Rossi",    "Weber",  "Haddad",  "Virtanen", "Silva",  "Murphy",   "Horvath",
    "Dubois",    "Andersen", "Castro", "Fischer", "Ivanova",  "Keller", "Nakamura", "Olsen"};
constexpr std::array<std::string_view, 32> kTowns{
    "Ostrava", "Bergen",  "Toledo", "Kazan",   "Porto",   "Uppsala", "Nantes", "Padua",  "Leiden", "Gdansk", "Turku",
    "Braga",   "Galway",  "Szeged", "Linz",    "Aarhus",  "Sibiu",   "Zadar",  "Ghent",  "Basel",  "Cadiz",  "Lyon",
    "Kyoto",   "Cordoba", "Tartu",  "Salerno", "Maribor", "Plovdiv", "Kaunas", "Bremen", "Dijon",  "Verona"};

constexpr int kVariables = 5;
constexpr int kKeys = 4;
constexpr int kPasskeyWords = 32;
constexpr int kPeople = 8;

constexpr std::string_view kNumbersBefore =
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the numbers afterwards.\n";

std::string number_statement(std::string_view key, std::string_view number) {
  return fmt::format("One of the special magic numbers for {} is: {}.", key, number);
}

Quiz number_quiz(int keys, Random& random) {
  Quiz quiz;
  quiz.before = kNumbersBefore;
  std::set<std::string> names;
  std::vector<std::pair<std::string, std::string>> pairs;
  while (static_cast<int>(pairs.size()) < keys) {
    std::string key = fmt::format("{}-{}", random.of(kQualities), random.of(kThings));
    if (!names.insert(key).second) continue;
    pairs.emplace_back(std::move(key), random.digits(7));
    quiz.statements.push_back(number_statement(pairs.back().first, pairs.back().second));
  }
  for (const auto& [key, number] : pairs) {
    quiz.questions.push_back(
        {fmt::format("What is the special magic number for {} mentioned in the provided text?", key), {number}});
  }
  quiz.asked = random.below(pairs.size());
  return quiz;
}

Quiz variable_quiz(int chains, Random& random) {
  Quiz quiz;
  quiz.before = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
  quiz.left.assign(1, '\n');
  quiz.right = quiz.left;
  std::set<std::string> values, names;
  while (static_cast<int>(quiz.questions.size()) < chains) {
    const std::string value = random.digits(5);
    if (!values.insert(value).second) continue;
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
  }
  return quiz;
}

Quiz passkey_quiz(Random& random) {
  Quiz quiz;
  quiz.before = "This is a very long story book: <book> ";
  quiz.after = " </book>.";
  quiz.left = quiz.right = "\n\n";
  quiz.metric = Metric::words;
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

/// One key with several numbers, or several keys with one each; all are asked for at once.
Quiz all_numbers_quiz(int keys, int values, Random& random) {
  Quiz quiz;
  quiz.before = kNumbersBefore;
  std::set<std::string> names, numbers;
  std::vector<std::string> asked;
  Question question;
  while (static_cast<int>(asked.size()) < keys) {
    std::string key = fmt::format("{}-{}", random.of(kQualities), random.of(kThings));
    if (!names.insert(key).second) continue;
    for (int i = 0; i < values;) {
      const std::string number = random.digits(7);
      if (!numbers.insert(number).second) continue;
      quiz.statements.push_back(number_statement(key, number));
      question.wanted.push_back(number);
      ++i;
    }
    asked.push_back(std::move(key));
  }
  std::string listed = asked.front();
  for (std::size_t i = 1; i < asked.size(); ++i) listed += (i + 1 == asked.size() ? ", and " : ", ") + asked[i];
  question.text = fmt::format("What are all the special magic numbers for {} mentioned in the provided text?", listed);
  quiz.questions.push_back(std::move(question));
  for (std::size_t i = quiz.statements.size(); i > 1; --i)
    std::swap(quiz.statements[i - 1], quiz.statements[random.below(i)]);
  return quiz;
}

Quiz facts_quiz(int people, Random& random) {
  Quiz quiz;
  constexpr std::string_view kAsk =
      "Answer the question based on the given text. Only give me the answer and do not output any other words.";
  quiz.before = fmt::format("{}\n\nThe following is the given text.\n\n", kAsk);
  quiz.left = quiz.right = "\n\n";
  quiz.metric = Metric::any;
  std::set<std::string> names, answers;
  while (static_cast<int>(quiz.statements.size()) < people) {
    const std::string person = fmt::format("{} {}", random.of(kFirstNames), random.of(kLastNames));
    const std::string year = fmt::format("{}", 1820 + random.below(180)), town(random.of(kTowns));
    if (names.contains(person) || answers.contains(year) || answers.contains(town)) continue;
    names.insert(person);
    answers.insert({year, town});
    quiz.statements.push_back(fmt::format("{} was born in {} and grew up in {}.", person, year, town));
    quiz.questions.push_back({fmt::format("{}\n\nQuestion: In which year was {} born?", kAsk, person), {year}});
    quiz.questions.push_back({fmt::format("{}\n\nQuestion: In which town did {} grow up?", kAsk, person), {town}});
  }
  quiz.asked = random.below(quiz.questions.size());
  return quiz;
}

Quiz copy_quiz(Random& random) {
  Quiz quiz;
  quiz.before = "One sentence of the following text is to be remembered word for word.\n\n";
  quiz.left = quiz.right = "\n\n";
  quiz.metric = Metric::words;
  const std::string sentence = generated_sentence(random);
  quiz.statements.push_back("The sentence to remember is: " + sentence);
  quiz.questions.push_back({"What is the sentence to remember? Copy it word for word.", {sentence}});
  return quiz;
}

Quiz common_words_quiz() {
  Quiz quiz;
  quiz.before =
      "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
      "appear most often.\n";
  quiz.questions.push_back({"Question: What are the 10 most common words in the above list?", {}});
  return quiz;
}

Quiz frequent_words_quiz() {
  Quiz quiz;
  quiz.before =
      "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
      "appeared coded words. ";
  quiz.questions.push_back(
      {"Question: Do not provide any explanation. Please ignore the dots '....'. What are the three most frequently "
       "appeared words in the above coded text?",
       {}});
  return quiz;
}

}  // namespace

Quiz make_quiz(Task task, Random& random, int hidden) {
  switch (task) {
    case Task::single:
      return number_quiz(1, random);
    case Task::multikey:
      return number_quiz(hidden > 0 ? hidden : kKeys, random);
    case Task::vt:
      return variable_quiz(std::max(1, hidden), random);
    case Task::passkey:
      return passkey_quiz(random);
    case Task::multivalue:
      return all_numbers_quiz(1, kKeys, random);
    case Task::multiquery:
      return all_numbers_quiz(kKeys, 1, random);
    case Task::cwe:
      return common_words_quiz();
    case Task::fwe:
      return frequent_words_quiz();
    case Task::qa:
      return facts_quiz(hidden > 0 ? hidden : kPeople, random);
    case Task::copy:
      break;
  }
  return copy_quiz(random);
}

Quiz mixed_quiz(std::span<const Quiz> quizzes, Random& random) {
  Quiz mixed;
  mixed.left = mixed.right = "\n";
  std::vector<std::size_t> whose;  // of each statement that is still to come
  for (std::size_t i = 0; i < quizzes.size(); ++i) {
    mixed.before += quizzes[i].before;
    mixed.after += quizzes[i].after;
    mixed.questions.insert(mixed.questions.end(), quizzes[i].questions.begin(), quizzes[i].questions.end());
    whose.insert(whose.end(), quizzes[i].statements.size(), i);
  }
  std::vector<std::size_t> next(quizzes.size(), 0);
  for (std::size_t left = whose.size(); left > 0; --left) {
    std::swap(whose[left - 1], whose[random.below(left)]);
    const std::size_t quiz = whose[left - 1];
    mixed.statements.push_back(quizzes[quiz].statements[next[quiz]++]);
  }
  return mixed;
}

std::string_view name(Task task) {
  return kTasks[static_cast<std::size_t>(task)];
}

Task parse_task(std::string_view text) {
  const auto found = std::find(kTasks.begin(), kTasks.end(), text);
  if (found == kTasks.end()) throw UserError(unknown_name("task", text, kTasks));
  return static_cast<Task>(found - kTasks.begin());
}

std::span<const std::string_view> task_names() {
  return kTasks;
}

bool counts_words(Task task) {
  return task == Task::cwe || task == Task::fwe;
}

}  // namespace glimpse::evaluate
