#include "glimpse/calibrate/prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "glimpse/base/error.h"

namespace glimpse::calibrate {
namespace {

constexpr std::int64_t kLeastProse = 64;  // tokens
constexpr std::size_t kLeastSentences = 50;

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
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

std::vector<text::Token> PromptMaker::render(const std::string& content) const {
  if (tokenizer_.has_chat_template()) {
    const text::ChatMessage message{"user", content};
    return tokenizer_.apply_chat({&message, 1}, true);
  }
  return tokenizer_.encode(content + "\n", text::Special::as_text, true);
}

RetrievalPrompt PromptMaker::make(Task task, std::int64_t length, std::uint64_t seed) const {
  return make_all(task, length, seed, 1).front();
}

std::vector<RetrievalPrompt> PromptMaker::make_all(Task task, std::int64_t length, std::uint64_t seed,
                                                   std::size_t most) const {
  Random random(seed);
  const Quiz quiz = make_quiz(task, random);
  const std::string& asked = quiz.questions[quiz.asked].text;
  std::int64_t room = length - static_cast<std::int64_t>(render(quiz.before + quiz.after + "\n\n" + asked).size());
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

  std::string haystack;
  RetrievalPrompt prompt;
  const auto ask = [&](const Question& question) {
    prompt.wanted = question.wanted;
    prompt.content = haystack + "\n\n" + question.text;
    prompt.tokens = render(prompt.content);
  };
  const auto write = [&] {
    haystack = quiz.before;
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
    haystack += quiz.after;
    ask(quiz.questions[quiz.asked]);
  };
  write();
  // Where texts meet, tokens may be a few more than the sum of the parts.
  while (static_cast<std::int64_t>(prompt.tokens.size()) > length && prose.size() > 1) {
    prose.pop_back();
    for (std::size_t& place : places) place = std::min(place, prose.size());
    write();
  }
  check(static_cast<std::int64_t>(prompt.tokens.size()) <= length, "a prompt keeps its length");
  std::vector<RetrievalPrompt> prompts;
  for (std::size_t i = 0; i < std::min(most, quiz.questions.size()); ++i) {
    if (i > 0) ask(quiz.questions[(quiz.asked + i) % quiz.questions.size()]);
    prompts.push_back(prompt);
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

}  // namespace glimpse::calibrate
