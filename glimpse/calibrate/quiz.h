// What a generated prompt hides and asks for, before prose is around it. A quiz is a function of the task and of what
// `random` gives. Values; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/calibrate/random.h"

namespace glimpse::calibrate {

enum class Task : std::uint8_t {
  single,    ///< one key, a number of seven digits
  multikey,  ///< four keys, one is asked for
  vt,        ///< a chain of five variables, all are asked for
  passkey,   ///< ten passkeys of 32 words, one is asked for
};
std::string_view name(Task task);
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
};

Quiz make_quiz(Task task, Random& random);

/// The share of `wanted` that the answer holds, as whole words, white space and case aside.
double share_found(std::string_view answer, const std::vector<std::string>& wanted);

}  // namespace glimpse::calibrate
