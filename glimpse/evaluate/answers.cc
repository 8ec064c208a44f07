#include "glimpse/evaluate/answers.h"

#include <algorithm>

#include "glimpse/evaluate/speed.h"

namespace glimpse::evaluate {
namespace {

using Group = std::vector<const Answer*>;

template <class Value>
double mean(const Group& group, const Value& value) {
  double sum = 0;
  for (const Answer* answer : group) sum += value(*answer);
  return sum / static_cast<double>(group.size());
}

/// Each group weighs the same in means; what is read and its time is that of all.
void add_up(const std::vector<Group>& groups, Cell& cell) {
  const auto count = static_cast<double>(groups.size());
  std::vector<std::vector<double>> scores;
  std::vector<double> seconds;
  double bytes = 0, dense_bytes = 0, steps = 0, cache = 0;
  for (const Group& group : groups) {
    cell.score += mean(group, [](const Answer& a) { return a.score; }) / count;
    cell.dense += mean(group, [](const Answer& a) { return a.dense; }) / count;
    cell.agreement += mean(group, [](const Answer& a) { return a.agreement; }) / count;
    cell.divergence += mean(group, [](const Answer& a) { return a.divergence; }) / count;
    scores.emplace_back();
    for (const Answer* answer : group) {
      scores.back().push_back(answer->score);
      ++cell.asked;
      if (answer->score == 1) ++cell.right;
      bytes += static_cast<double>(answer->bytes_read);
      dense_bytes += static_cast<double>(answer->dense_bytes);
      steps += static_cast<double>(answer->steps);
      cache += static_cast<double>(answer->cache_bytes);
      if (answer->step_s) seconds.push_back(*answer->step_s);
    }
  }
  cell.interval = bootstrap(scores);
  if (dense_bytes > 0) cell.kept_ratio = bytes / dense_bytes;
  if (steps > 0) cell.bytes_per_token = bytes / steps;
  if (cell.asked > 0) cell.cache_bytes = cache / static_cast<double>(cell.asked);
  if (!seconds.empty()) cell.step_s = median(std::move(seconds));
}

std::optional<std::size_t> rank_of(const std::vector<std::string>& list, const std::string& word) {
  const auto found = std::find(list.begin(), list.end(), word);
  return found == list.end() ? std::nullopt : std::optional(static_cast<std::size_t>(found - list.begin()));
}

}  // namespace

std::vector<Cell> Answers::cells(const std::vector<std::string>& tasks, const std::vector<std::string>& arms) const {
  std::map<std::tuple<std::int64_t, std::size_t, std::optional<int>, std::size_t>, Group> groups;
  for (const auto& [key, answer] : answers_) {
    const auto task = rank_of(tasks, key.task), arm = rank_of(arms, key.arm);
    if (task && arm) groups[{key.length, *task, key.depth, *arm}].push_back(&answer);
  }
  std::vector<Cell> list;
  for (const auto& [place, group] : groups) {
    const auto& [length, task, depth, arm] = place;
    Cell& cell = list.emplace_back(Cell{tasks[task], length, depth, arms[arm]});
    add_up({group}, cell);
  }
  return list;
}

std::vector<Cell> Answers::overall(const std::vector<std::string>& tasks, const std::vector<std::string>& arms) const {
  std::map<AnswerKey, std::size_t> answered;  // arms, by prompt: keys without an arm
  for (const auto& [key, answer] : answers_) {
    if (!rank_of(arms, key.arm)) continue;
    AnswerKey prompt = key;
    prompt.arm.clear();
    ++answered[prompt];
  }
  std::map<std::pair<std::int64_t, std::size_t>, std::map<std::size_t, Group>> groups;
  for (const auto& [key, answer] : answers_) {
    const auto task = rank_of(tasks, key.task), arm = rank_of(arms, key.arm);
    if (!task || !arm) continue;
    AnswerKey prompt = key;
    prompt.arm.clear();
    if (answered[prompt] == arms.size()) groups[{key.length, *arm}][*task].push_back(&answer);
  }
  std::vector<Cell> list;
  for (const auto& [place, by_task] : groups) {
    std::vector<Group> of_tasks;
    for (const auto& [task, group] : by_task) of_tasks.push_back(group);
    Cell& cell = list.emplace_back(Cell{"", place.first, std::nullopt, arms[place.second]});
    add_up(of_tasks, cell);
  }
  return list;
}

}  // namespace glimpse::evaluate
