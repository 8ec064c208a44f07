// Answers of many (task, length, prompt, arm), kept one by one so that a run that ends early loses nothing, and what
// they add up to. Values; one thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "bench/statistics.h"

namespace glimpse::bench {

/// Where an answer belongs.
struct AnswerKey {
  std::string task;
  std::int64_t length = 0, prompt = 0;
  std::string method, budget;
  friend auto operator<=>(const AnswerKey&, const AnswerKey&) = default;
};

struct Answer {
  double share = 0;  ///< of what was wanted
  double kept_ratio = 1, seconds = 0;
  std::int64_t steps = 0;
  std::string text;
  bool right() const { return share == 1; }
};

/// One (task, length, method, budget).
struct Cell {
  std::string task, method, budget;
  std::int64_t length = 0, count = 0, right = 0;
  double share = 0, kept_ratio = 0;   ///< means
  std::int64_t lost = 0, gained = 0;  ///< prompts that only dense, only this method answered
  Interval interval;                  ///< of right / count, 95 %
};

class RetrievalResults {
 public:
  bool has(const AnswerKey& key) const { return answers_.contains(key); }
  void add(const AnswerKey& key, Answer answer) { answers_.insert_or_assign(key, std::move(answer)); }
  std::size_t size() const { return answers_.size(); }

  /// Cells by task and length, methods in the order of `methods`, then those that it does not name.
  std::vector<Cell> cells(const std::vector<std::string>& methods) const;

  /// The answers as a JSON array and back. read() adds to what is there; throws UserError for anything else, with
  /// `label` for the file.
  std::string json() const;
  void read(std::string_view array, const std::string& label);

 private:
  std::map<AnswerKey, Answer> answers_;
};

}  // namespace glimpse::bench
