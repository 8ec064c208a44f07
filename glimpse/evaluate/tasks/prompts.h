// Prompts of generated tasks (quiz.h) of any length. A prompt is a function of task, length, seed and depth alone.
// Borrows the tokenizer; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/evaluate/tasks/quiz.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::evaluate {

struct RetrievalPrompt {
  std::vector<text::Token> tokens;  ///< the chat template's rendering, ready for the answer
  std::string content;              ///< the user's message
  std::vector<std::string> wanted;  ///< what the answer must hold
  Metric metric = Metric::words;
};

struct PromptRequest {
  Task task = Task::single;
  std::int64_t length = 0;  ///< tokens
  std::uint64_t seed = 1;
  /// Of a task with one statement: the share of the prose that comes before it, 0 to 1. None: anywhere.
  std::optional<double> depth;
  int hidden = 0;  ///< as make_quiz has it; the prompt asks for one of them
};

/// One of the tasks of a haystack that hides several.
struct MixedTask {
  Task task = Task::multikey;  ///< none that counts words
  int hidden = 0;              ///< as PromptRequest's
  std::size_t most = 1;        ///< questions
  bool quiet = false;          ///< the text does not begin with what the task says there
};

/// One user message in the chat template, ready for the answer; without a template the text and a line's end.
std::vector<text::Token> render_prompt(const text::Tokenizer& tokenizer, const std::string& content);

class PromptMaker {
 public:
  /// `filler` is prose with sentences; throws UserError when it has fewer than 50.
  PromptMaker(const text::Tokenizer& tokenizer, std::string_view filler);

  /// At most `length` tokens, and few less. Throws UserError when the statements leave no room for prose.
  RetrievalPrompt make(const PromptRequest& request) const;
  RetrievalPrompt make(Task task, std::int64_t length, std::uint64_t seed) const { return make({task, length, seed}); }
  /// The same haystack with up to `most` of its questions, the one that make() asks first. Of the others a prompt may
  /// be some tokens longer than `length`.
  std::vector<RetrievalPrompt> make_all(const PromptRequest& request, std::size_t most) const;
  /// One haystack that hides what all of these tasks do, and for each task up to `most` of its questions. As make_all
  /// otherwise.
  std::vector<std::vector<RetrievalPrompt>> make_mixed(std::span<const MixedTask> tasks, std::int64_t length,
                                                       std::uint64_t seed) const;
  /// Plain prose, `length` tokens of it.
  std::vector<text::Token> prose(std::int64_t length, std::uint64_t seed) const;

 private:
  struct Sentence {
    std::string text;  ///< without the white space after it
    std::string gap;   ///< that white space
    std::int64_t tokens = 0;
  };
  std::vector<text::Token> render(const std::string& content) const { return render_prompt(tokenizer_, content); }
  RetrievalPrompt make_words(const PromptRequest& request) const;
  /// The quiz in prose, so that the prompt that asks `asked` behind it has at most `request.length` tokens.
  std::string haystack_of(const Quiz& quiz, const Question& asked, const PromptRequest& request, Random& random) const;
  RetrievalPrompt ask(const std::string& haystack, const Question& question, Metric metric) const;

  const text::Tokenizer& tokenizer_;
  std::vector<Sentence> sentences_;
};

}  // namespace glimpse::evaluate
