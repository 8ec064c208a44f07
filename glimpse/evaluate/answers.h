// What arms answered to generated prompts, and what that adds up to. Values; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "glimpse/evaluate/bootstrap.h"

namespace glimpse::evaluate {

/// One prompt, under one arm.
struct AnswerKey {
  std::string task;
  std::int64_t length = 0;   ///< tokens of the prompt with its answer, at most
  std::optional<int> depth;  ///< of a needle, percent
  std::int64_t number = 0;   ///< of the prompt, from 0
  std::string arm;
  auto tie() const { return std::tie(task, length, depth, number, arm); }
  friend bool operator<(const AnswerKey& a, const AnswerKey& b) { return a.tie() < b.tie(); }
};

struct Answer {
  double score = 0;       ///< of the arm's own answer, 0 to 1
  double dense = 0;       ///< of dense attention's answer to the same prompt
  double agreement = 1;   ///< share of dense attention's tokens, behind the first, that the arm would choose too
  double divergence = 0;  ///< KL(dense || arm) in nats, the mean over those tokens
  std::int64_t bytes_read = 0, dense_bytes = 0, steps = 0;  ///< of the tokens decoded with dense attention's answer
  std::optional<double> step_s;                             ///< median time of one, seconds
  std::int64_t cache_bytes = 0;                             ///< keys, values and indices behind the last of them
  std::string text;                                         ///< the arm's own answer
};

/// What answers add up to, of one task or of several.
struct Cell {
  std::string task;  ///< empty: of all tasks, each weighing the same
  std::int64_t length = 0;
  std::optional<int> depth;
  std::string arm;
  std::int64_t asked = 0, right = 0;  ///< right: of score 1
  double score = 0;                   ///< mean
  Interval interval;                  ///< of the mean, 95 %
  double dense = 0;                   ///< mean score of dense attention on the same prompts
  double agreement = 0, divergence = 0;
  double kept_ratio = 1;       ///< bytes read over those of dense attention
  double bytes_per_token = 0;  ///< read
  double cache_bytes = 0;
  std::optional<double> step_s;  ///< median over the prompts of their medians
};

class Answers {
 public:
  bool has(const AnswerKey& key) const { return answers_.contains(key); }
  void add(const AnswerKey& key, Answer answer) { answers_.insert_or_assign(key, std::move(answer)); }
  std::size_t size() const { return answers_.size(); }
  const std::map<AnswerKey, Answer>& all() const { return answers_; }

  /// Of each task, length, depth and arm; by length, then task, depth and arm in the order of the lists. What the lists
  /// lack is left out.
  std::vector<Cell> cells(const std::vector<std::string>& tasks, const std::vector<std::string>& arms) const;
  /// Of each length and arm, over all tasks of the list; `task` and `depth` are empty. Prompts that not all arms of the
  /// list have answered are left out, so that arms compare also where a run was interrupted.
  std::vector<Cell> overall(const std::vector<std::string>& tasks, const std::vector<std::string>& arms) const;

 private:
  std::map<AnswerKey, Answer> answers_;
};

}  // namespace glimpse::evaluate
