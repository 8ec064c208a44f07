// What a generated prompt hides and asks for, before prose is around it. A quiz is a function of the task and of what
// `random` gives. Values; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/evaluate/tasks/metric.h"
#include "glimpse/evaluate/tasks/random.h"

namespace glimpse::evaluate {

/// Those of RULER (Hsieh et al., 2024, section 3) in its phrasing, without its worked example and its answer's
/// beginning.
enum class Task : std::uint8_t {
  single,      ///< one key, a number of seven digits
  multikey,    ///< four keys, one is asked for
  vt,          ///< a chain of five variables, all are asked for
  passkey,     ///< ten passkeys of 32 words, one is asked for
  multivalue,  ///< four numbers of one key, all are asked for
  multiquery,  ///< four keys, all are asked for
  cwe,         ///< the ten most common words of a list
  fwe,         ///< the three most frequent coded words
  qa,          ///< facts about eight people, one is asked for
  copy,        ///< a sentence, to be copied
};
std::string_view name(Task task);
/// In their order.
std::span<const std::string_view> task_names();
/// True for a task whose text is a list of words, and no prose with something in it.
bool counts_words(Task task);
/// Throws UserError with the nearest name.
Task parse_task(std::string_view text);

struct Question {
  std::string text;
  std::vector<std::string> wanted;  ///< all that the answer must hold
};

struct Quiz {
  std::string before, after;            ///< directly around the haystack
  std::string left = " ", right = " ";  ///< around a statement
  std::vector<std::string> statements;  ///< in this order
  std::vector<Question> questions;      ///< one for each key, or one in all
  std::size_t asked = 0;                ///< the one that a prompt with one question asks
  Metric metric = Metric::all;
};

/// Of a task that counts words: before, after and the question, whose answer is not known yet. `hidden` says how many
/// keys `multikey` hides and how many chains `vt`, each with a question, and how many people `qa`, each with two; 0: as
/// many as RULER, of people eight. Other tasks have their own number.
Quiz make_quiz(Task task, Random& random, int hidden = 0);

/// What all of them hide, in one text: each in its order, and which is next is drawn. Its questions are theirs, one
/// quiz behind the other; a metric is that of a quiz alone, so its own says nothing.
Quiz mixed_quiz(std::span<const Quiz> quizzes, Random& random);

}  // namespace glimpse::evaluate
