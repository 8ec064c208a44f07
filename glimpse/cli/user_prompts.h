// Questions of the user's own, a JSON object a line, as LongBench, RULER and collections of problems have them. Any
// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/evaluate/tasks/prompts.h"

namespace glimpse::cli {

struct UserPrompt {
  std::string task;                 ///< "dataset" or "task" of the line, else "lines"
  std::string text;                 ///< "prompt", or "context" and "input"; else "question" or "problem"
  std::vector<std::string> wanted;  ///< "outputs", "answers" or "answer"
  evaluate::Metric metric = evaluate::Metric::f1;
};

/// At most `most` of them; `metric`: of every line, whatever it says. Without it that of "metric", else LongBench's of
/// the data set, else by the name of what is wanted: outputs: all; answers: f1; answer: words. Throws UserError with
/// the line's number, and for a data set whose official metric is another one.
std::vector<UserPrompt> parse_user_prompts(std::string_view text, std::optional<evaluate::Metric> metric,
                                           std::int64_t most);

/// At most `length` tokens: from the middle of what is longer, tokens are left out, as LongBench does.
evaluate::RetrievalPrompt render_user_prompt(const text::Tokenizer& tokenizer, const UserPrompt& prompt,
                                             std::int64_t length);

}  // namespace glimpse::cli
