// Generated tasks against their definitions, read back from the text by parsers of the test's own; and metrics against
// values worked out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/tasks/prompts.h"
#include "glimpse/evaluate/tasks/prose.h"
#include "glimpse/evaluate/tasks/vocabulary.h"
#include "tests/engine/support.h"
#include "tests/support/refusal.h"

namespace glimpse::evaluate {
namespace {

using testing::HasSubstr;
using Strings = std::vector<std::string>;

TEST(Metric, FollowsRulersDefinitions) {
  EXPECT_EQ(score(Metric::all, "It is ALPHA, not beta2.", {"alpha", "beta", "gamma", "delta"}), 0.5);
  EXPECT_EQ(score(Metric::any, "It is ALPHA.", {"gamma", "alpha"}), 1);
  EXPECT_EQ(score(Metric::any, "It is ALPHA.", {"gamma", "delta"}), 0);
  EXPECT_EQ(score(Metric::words, "It is beta2.", {"beta"}), 0);
  EXPECT_EQ(score(Metric::words, "Alpha,\n bravo", {"alpha bravo"}), 1);
  EXPECT_EQ(score(Metric::exact, " 42\n", {"41", "42"}), 1);
  EXPECT_EQ(score(Metric::exact, "42.", {"42"}), 0);
  for (const Metric metric : {Metric::words, Metric::all, Metric::any, Metric::exact, Metric::f1, Metric::rouge_l}) {
    EXPECT_EQ(parse_metric(name(metric)), metric);
    EXPECT_EQ(score(metric, "x", {}), 0);
    EXPECT_EQ(score(metric, "", {"x"}), 0);
  }
  EXPECT_THAT(refusal([] { parse_metric("rouge"); }), HasSubstr("rouge_l"));
}

TEST(Metric, FollowsLongBenchsDefinitions) {
  // {cat, sat} of {cat, sat} and of {cat, sat, down}: precision 1, recall 2/3.
  EXPECT_DOUBLE_EQ(score(Metric::f1, "The cat sat.", {"A cat sat down"}), 0.8);
  // A word counts as often as both have it: 2 of 3 and 2 of 2.
  EXPECT_DOUBLE_EQ(score(Metric::f1, "no no no", {"no, no"}), 0.8);
  EXPECT_DOUBLE_EQ(score(Metric::f1, "cat", {"dog", "the cat"}), 1);
  EXPECT_DOUBLE_EQ(score(Metric::f1, "cat", {"dog"}), 0);
  // the ... sat: 2 of 3 and 2 of 4.
  EXPECT_DOUBLE_EQ(score(Metric::rouge_l, "the cat sat", {"the dog sat down"}), 2 * (2.0 / 3) * 0.5 / (2.0 / 3 + 0.5));
  EXPECT_DOUBLE_EQ(score(Metric::rouge_l, "b a", {"a b"}), 0.5);
}

/// They refer to the text.
std::vector<std::smatch> all_of(const std::string& text, const char* pattern) {
  const std::regex regex(pattern);
  return {std::sregex_iterator(text.begin(), text.end(), regex), {}};
}
std::vector<std::smatch> all_of(std::string&& text, const char* pattern) = delete;

class Tasks : public testing::Test {
 protected:
  engine::Engine engine_{engine::options_for(reference::test_model("llama"))};
  PromptMaker maker_{engine_.tokenizer(), generated_prose(400, 3)};

  std::int64_t tokens_of(const std::string& text) const {
    return std::ssize(engine_.tokenizer().encode(text, text::Special::as_text, false));
  }
};

TEST_F(Tasks, KeepTheirLengthAndTheirSeed) {
  for (const std::string_view word : task_names()) {
    const Task task = parse_task(word);
    for (const std::int64_t length : {std::int64_t{3000}, std::int64_t{6000}}) {
      if (task == Task::passkey && length < 6000) continue;  // its statements alone are longer by this tokenizer
      SCOPED_TRACE(testing::Message() << word << " " << length);
      const RetrievalPrompt prompt = maker_.make(task, length, 7);
      EXPECT_LE(std::ssize(prompt.tokens), length);
      EXPECT_GE(std::ssize(prompt.tokens), length - 150);
      EXPECT_EQ(prompt.tokens, maker_.make(task, length, 7).tokens);
      EXPECT_NE(prompt.content, maker_.make(task, length, 8).content);
      if (task != Task::copy && task != Task::passkey) {
        EXPECT_EQ(score(prompt.metric, prompt.content, prompt.wanted), 1);
      }
    }
    EXPECT_THROW(maker_.make(task, 40, 7), UserError);
  }
}

TEST_F(Tasks, CommonWordsAreTheMostFrequentOfTheirList) {
  for (const auto& [length, often, seldom] : {std::array{8000, 30, 3}, std::array{3000, 6, 1}}) {
    const RetrievalPrompt prompt = maker_.make(Task::cwe, length, 11);
    std::map<std::string, int> count;
    int number = 0;
    for (const std::smatch& item : all_of(prompt.content, R"((\d+)\. ([a-z-]+))")) {
      EXPECT_EQ(std::stoi(item[1]), ++number);
      ++count[item[2]];
    }
    std::set<std::string> frequent;
    for (const auto& [word, times] : count) {
      if (times == often) {
        frequent.insert(word);
      } else {
        EXPECT_EQ(times, seldom) << word;
      }
    }
    EXPECT_EQ(frequent, std::set<std::string>(prompt.wanted.begin(), prompt.wanted.end()));
    EXPECT_EQ(prompt.wanted.size(), 10U);
    EXPECT_GT(count.size(), 40U);
    EXPECT_EQ(prompt.metric, Metric::all);
  }
}

TEST_F(Tasks, CommonWordsDoNotRunOut) {
  const RetrievalPrompt prompt = maker_.make(Task::cwe, 40000, 2);
  std::map<std::string, int> count;
  for (const std::smatch& item : all_of(prompt.content, R"(\d+\. ([a-z-]+))")) ++count[item[1]];
  EXPECT_GT(count.size(), vocabulary().size());
  for (const auto& [word, times] : count) EXPECT_TRUE(times == 30 || times == 3) << word << " " << times;
}

TEST_F(Tasks, FrequentWordsAreThoseOfTheirText) {
  const RetrievalPrompt prompt = maker_.make(Task::fwe, 6000, 5);
  const std::size_t begin = prompt.content.find("coded words. ") + 13, end = prompt.content.rfind("\nQuestion");
  const std::string text = prompt.content.substr(begin, end - begin);
  std::map<std::string, int> count;
  for (const std::smatch& word : all_of(text, R"(\S+)")) ++count[word.str()];
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [word, times] : count) order.emplace_back(-times, word);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order[0].second, "...");
  Strings top;
  for (int i = 1; i <= 3; ++i) {
    top.push_back(order[static_cast<std::size_t>(i)].second);
    EXPECT_THAT(top.back(), testing::MatchesRegex("[a-z]{6}"));
    // At rank k, 1 / k^2 of what rank 1 has; both were rounded down.
    EXPECT_NEAR(-order[static_cast<std::size_t>(i)].first, -order[0].first / ((i + 1.0) * (i + 1.0)), 1.01);
  }
  EXPECT_EQ(prompt.wanted, top);
  EXPECT_LT(order[3].first, order[4].first) << "the third is not a tie with the fourth";
}

TEST_F(Tasks, VariablesAreThoseThatTheChainAssigns) {
  const RetrievalPrompt prompt = maker_.make(Task::vt, 4000, 9);
  std::map<std::string, std::string> value;
  for (const std::smatch& line : all_of(prompt.content, R"(VAR ([A-Z]+) = (?:VAR ([A-Z]+)|(\d+)))")) {
    if (line[3].matched) {
      value[line[1]] = line[3];
    } else {
      ASSERT_TRUE(value.contains(line[2])) << "assigned before it is read";
      value[line[1]] = value[line[2]];
    }
  }
  const std::string asked = all_of(prompt.content, R"(assigned the value (\d{5}) in)").at(0)[1];
  Strings wanted = prompt.wanted;
  EXPECT_EQ(wanted.size(), 5U);
  for (const auto& [variable, number] : value) {
    EXPECT_EQ(number == asked, std::find(wanted.begin(), wanted.end(), variable) != wanted.end()) << variable;
  }
}

TEST_F(Tasks, NumbersAreAllThatTheirKeysHave) {
  for (const auto& [task, keys, values] : {std::tuple{Task::single, 1, 1}, std::tuple{Task::multikey, 1, 1},
                                           std::tuple{Task::multivalue, 1, 4}, std::tuple{Task::multiquery, 4, 1}}) {
    const RetrievalPrompt prompt = maker_.make(task, 4000, 21);
    const std::size_t question = prompt.content.rfind("\n\n");
    std::multimap<std::string, std::string> numbers;
    const std::string document = prompt.content.substr(0, question), asks = prompt.content.substr(question);
    for (const std::smatch& one : all_of(document, R"(One of the special magic numbers for ([a-z-]+) is: (\d{7})\.)")) {
      numbers.emplace(one[1], one[2]);
    }
    EXPECT_EQ(numbers.size(), task == Task::single ? 1U : 4U);
    std::multiset<std::string> wanted;
    int asked = 0;
    for (const std::smatch& key : all_of(asks, "[a-z]+-[a-z]+")) {
      ++asked;
      const auto [from, to] = numbers.equal_range(key.str());
      EXPECT_EQ(std::distance(from, to), values);
      for (auto it = from; it != to; ++it) wanted.insert(it->second);
    }
    EXPECT_EQ(asked, keys);
    EXPECT_EQ(std::multiset<std::string>(prompt.wanted.begin(), prompt.wanted.end()), wanted);
  }
}

TEST_F(Tasks, FactsAnswerTheirQuestion) {
  bool years = false, towns = false;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const RetrievalPrompt prompt = maker_.make(Task::qa, 3000, seed);
    std::map<std::string, std::pair<std::string, std::string>> facts;
    for (const std::smatch& fact :
         all_of(prompt.content, R"(([A-Z]\w+ [A-Z]\w+) was born in (\d{4}) and grew up in (\w+)\.)")) {
      facts[fact[1]] = {fact[2], fact[3]};
    }
    EXPECT_EQ(facts.size(), 8U);
    const auto year = all_of(prompt.content, R"(In which year was ([\w ]+) born\?)");
    const auto town = all_of(prompt.content, R"(In which town did ([\w ]+) grow up\?)");
    ASSERT_EQ(year.size() + town.size(), 1U);
    EXPECT_EQ(prompt.wanted, Strings{year.empty() ? facts.at(town[0][1]).second : facts.at(year[0][1]).first});
    EXPECT_EQ(prompt.metric, Metric::any);
    (year.empty() ? towns : years) = true;
  }
  EXPECT_TRUE(years && towns);
}

TEST_F(Tasks, TheSentenceToCopyIsTheOneThatIsNamed) {
  const RetrievalPrompt prompt = maker_.make(Task::copy, 3000, 4);
  const auto named = all_of(prompt.content, R"(\n\nThe sentence to remember is: ([^\n]+)\n\n)");
  ASSERT_EQ(named.size(), 1U);
  EXPECT_EQ(prompt.wanted, Strings{named[0][1]});
  EXPECT_EQ(score(prompt.metric, "It is: " + named[0][1].str(), prompt.wanted), 1);
}

TEST_F(Tasks, ANeedleLiesAtItsDepth) {
  for (const double depth : {0.0, 0.25, 0.5, 0.9, 1.0}) {
    const RetrievalPrompt prompt = maker_.make({.task = Task::single, .length = 4000, .seed = 3, .depth = depth});
    const std::size_t begin = prompt.content.find("afterwards.\n") + 12, end = prompt.content.rfind("\n\n");
    const std::size_t needle = prompt.content.find("One of the special magic numbers");
    const auto before = static_cast<double>(tokens_of(prompt.content.substr(begin, needle - begin)));
    const auto all = static_cast<double>(tokens_of(prompt.content.substr(begin, end - begin)));
    EXPECT_NEAR(before / all, depth, 0.04) << "within a sentence and the needle";
    EXPECT_EQ(prompt.wanted, maker_.make(Task::single, 4000, 3).wanted);
  }
}

}  // namespace
}  // namespace glimpse::evaluate
