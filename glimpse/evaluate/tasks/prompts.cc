#include "glimpse/evaluate/tasks/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "glimpse/base/error.h"
#include "glimpse/evaluate/tasks/word_lists.h"

namespace glimpse::evaluate {
namespace {

constexpr std::int64_t kLeastProse = 64;  // tokens
constexpr std::size_t kLeastSentences = 50;
// RULER's: a coded word for each 50 tokens; shorter lists of words below 4,096 tokens with the answer.
constexpr std::int64_t kTokensOfRank = 50, kShortList = 3840;
constexpr std::int64_t kLeastRanks = 8, kLeastWords = 200;
constexpr std::int64_t kMostWords = 200'000;  // that the vocabulary gives

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

/// The boundary between sentences that is nearest to a share of their tokens, `all` of them.
template <class Sentences>
std::size_t place_at(double depth, const Sentences& prose, std::int64_t all) {
  const double wanted = depth * static_cast<double>(all);
  std::size_t place = 0;
  double before = 0;
  for (; place < prose.size(); ++place) {
    const double next = before + static_cast<double>(prose[place]->tokens);
    if (next - wanted > wanted - before) break;
    before = next;
  }
  return place;
}

}  // namespace

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

std::vector<text::Token> render_prompt(const text::Tokenizer& tokenizer, const std::string& content) {
  if (tokenizer.has_chat_template()) {
    const text::ChatMessage message{"user", content};
    return tokenizer.apply_chat({&message, 1}, true);
  }
  return tokenizer.encode(content + "\n", text::Special::as_text, true);
}

RetrievalPrompt PromptMaker::make(const PromptRequest& request) const {
  if (counts_words(request.task)) return make_words(request);
  return make_all(request, 1).front();
}

RetrievalPrompt PromptMaker::make_words(const PromptRequest& request) const {
  Random random(request.seed);
  const Quiz quiz = make_quiz(request.task, random);
  const std::int64_t ranks = std::max<std::int64_t>(request.length / kTokensOfRank, kLeastRanks);
  const bool is_short = request.length < kShortList;
  const auto prompt_of = [&](std::int64_t size) {
    WordList list = request.task == Task::cwe ? common_words(size, is_short, request.seed)
                                              : frequent_words(size, ranks, request.seed);
    RetrievalPrompt prompt;
    prompt.content = quiz.before + list.text + "\n" + quiz.questions.front().text;
    prompt.wanted = std::move(list.wanted);
    prompt.metric = quiz.metric;
    prompt.tokens = render(prompt.content);
    return prompt;
  };
  // The largest list that fits: its tokens grow with its size, but for a few where words meet.
  std::int64_t low = request.task == Task::cwe ? 1 : kLeastWords, high = std::min(request.length, kMostWords);
  RetrievalPrompt best = prompt_of(low);
  const auto fits = [&](const RetrievalPrompt& prompt) {
    return static_cast<std::int64_t>(prompt.tokens.size()) <= request.length;
  };
  if (!fits(best)) {
    throw UserError(fmt::format("a prompt of {} tokens is too short for '{}', whose least has {}; give that or more",
                                request.length, name(request.task), best.tokens.size()));
  }
  while (low + 1 < high) {
    const std::int64_t middle = low + (high - low) / 2;
    RetrievalPrompt prompt = prompt_of(middle);
    if (fits(prompt)) {
      low = middle;
      best = std::move(prompt);
    } else {
      high = middle;
    }
  }
  return best;
}

RetrievalPrompt PromptMaker::ask(const std::string& haystack, const Question& question, Metric metric) const {
  RetrievalPrompt prompt;
  prompt.metric = metric;
  prompt.wanted = question.wanted;
  prompt.content = haystack + "\n\n" + question.text;
  prompt.tokens = render(prompt.content);
  return prompt;
}

std::string PromptMaker::haystack_of(const Quiz& quiz, const Question& asked, const PromptRequest& request,
                                     Random& random) const {
  const std::int64_t length = request.length;
  std::int64_t room = length - static_cast<std::int64_t>(render(quiz.before + quiz.after + "\n\n" + asked.text).size());
  for (const std::string& statement : quiz.statements) {
    const std::string around = quiz.left + statement + quiz.right;
    room -= static_cast<std::int64_t>(tokenizer_.encode(around, text::Special::as_text, false).size());
  }
  if (room < kLeastProse) {
    throw UserError(fmt::format("a prompt of {} tokens leaves {} for prose around the statements of '{}'; give {} more",
                                length, room, name(request.task), kLeastProse - room));
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
  check(!request.depth || places.size() == 1, "a depth is that of one statement");
  if (request.depth) places.front() = place_at(*request.depth, prose, filled);

  const auto write = [&] {
    std::string haystack = quiz.before;
    std::string gap;
    std::size_t next = 0;
    for (std::size_t i = 0; i <= prose.size(); ++i) {
      for (; next < places.size() && places[next] == i; ++next) {
        haystack += (haystack == quiz.before ? "" : quiz.left) + quiz.statements[next];
        gap = quiz.right;
      }
      if (i == prose.size()) break;
      haystack += gap + prose[i]->text;
      gap = prose[i]->gap;
    }
    return haystack + quiz.after;
  };
  std::string haystack = write();
  const auto tokens = [&] { return static_cast<std::int64_t>(render(haystack + "\n\n" + asked.text).size()); };
  // Where texts meet, tokens may be a few more than the sum of the parts.
  std::int64_t all = tokens();
  for (; all > length && prose.size() > 1; all = tokens()) {
    prose.pop_back();
    for (std::size_t& place : places) place = std::min(place, prose.size());
    haystack = write();
  }
  check(all <= length, "a prompt keeps its length");
  return haystack;
}

std::vector<RetrievalPrompt> PromptMaker::make_all(const PromptRequest& request, std::size_t most) const {
  Random random(request.seed);
  const Quiz quiz = make_quiz(request.task, random, request.hidden);
  const std::string haystack = haystack_of(quiz, quiz.questions[quiz.asked], request, random);
  std::vector<RetrievalPrompt> prompts;
  for (std::size_t i = 0; i < std::min(most, quiz.questions.size()); ++i) {
    prompts.push_back(ask(haystack, quiz.questions[(quiz.asked + i) % quiz.questions.size()], quiz.metric));
  }
  return prompts;
}

std::vector<std::vector<RetrievalPrompt>> PromptMaker::make_mixed(std::span<const MixedTask> tasks, std::int64_t length,
                                                                  std::uint64_t seed) const {
  Random random(seed);
  std::vector<Quiz> quizzes;
  for (const MixedTask& task : tasks) {
    quizzes.push_back(make_quiz(task.task, random, task.hidden));
    if (task.quiet) quizzes.back().before.clear();
  }
  const Quiz mixed = mixed_quiz(quizzes, random);
  const auto longest =
      std::max_element(mixed.questions.begin(), mixed.questions.end(),
                       [](const Question& a, const Question& b) { return a.text.size() < b.text.size(); });
  const std::string haystack = haystack_of(mixed, *longest, {tasks.front().task, length, seed}, random);
  std::vector<std::vector<RetrievalPrompt>> prompts;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const Quiz& quiz = quizzes[i];
    std::vector<RetrievalPrompt>& of = prompts.emplace_back();
    for (std::size_t j = 0; j < std::min(tasks[i].most, quiz.questions.size()); ++j) {
      of.push_back(ask(haystack, quiz.questions[(quiz.asked + j) % quiz.questions.size()], quiz.metric));
    }
  }
  return prompts;
}

std::vector<text::Token> PromptMaker::prose(std::int64_t length, std::uint64_t seed) const {
  Random random(seed);
  std::string text;
  std::int64_t filled = 0;
  for (std::size_t at = random.below(sentences_.size()); filled < length; at = (at + 1) % sentences_.size()) {
    text += sentences_[at].text + (sentences_[at].gap.empty() ? " " : sentences_[at].gap);
    filled += std::max<std::int64_t>(sentences_[at].tokens, 1);
  }
  std::vector<text::Token> tokens = tokenizer_.encode(text, text::Special::as_text, true);
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(length)));
  return tokens;
}

}  // namespace glimpse::evaluate
