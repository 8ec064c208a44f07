#include "bench/retrieval_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "glimpse/base/error.h"

namespace glimpse::bench {

using Json = nlohmann::ordered_json;

std::vector<Cell> RetrievalResults::cells(const std::vector<std::string>& methods) const {
  std::map<AnswerKey, Cell> cells;  // by a key with prompt 0
  for (const auto& [key, answer] : answers_) {
    AnswerKey place = key;
    place.prompt = 0;
    Cell& cell = cells[place];
    ++cell.count;
    cell.right += answer.right();
    cell.share += answer.share;
    cell.kept_ratio += answer.kept_ratio;
    AnswerKey dense = key;
    dense.method = "full";
    dense.budget.clear();
    const auto baseline = answers_.find(dense);
    if (baseline == answers_.end()) continue;
    cell.lost += baseline->second.right() && !answer.right();
    cell.gained += !baseline->second.right() && answer.right();
  }
  std::vector<Cell> list;
  for (auto& [key, cell] : cells) {
    const auto count = static_cast<double>(cell.count);
    cell.task = key.task;
    cell.length = key.length;
    cell.method = key.method;
    cell.budget = key.budget;
    cell.share /= count;
    cell.kept_ratio /= count;
    cell.interval = wilson(cell.right, cell.count);
    list.push_back(cell);
  }
  const auto rank = [&](const Cell& cell) { return std::find(methods.begin(), methods.end(), cell.method); };
  std::stable_sort(list.begin(), list.end(), [&](const Cell& a, const Cell& b) {
    if (a.task != b.task) return a.task < b.task;
    return a.length != b.length ? a.length < b.length : rank(a) < rank(b);
  });
  return list;
}

std::string RetrievalResults::json() const {
  Json list = Json::array();
  for (const auto& [key, answer] : answers_) {
    list.push_back({{"task", key.task},
                    {"length", key.length},
                    {"prompt", key.prompt},
                    {"method", key.method},
                    {"budget", key.budget},
                    {"share", answer.share},
                    {"kept_ratio", answer.kept_ratio},
                    {"seconds", answer.seconds},
                    {"steps", answer.steps},
                    {"text", answer.text}});
  }
  return list.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void RetrievalResults::read(std::string_view array, const std::string& label) {
  try {
    for (const Json& entry : Json::parse(array)) {
      const AnswerKey key{entry.at("task"), entry.at("length"), entry.at("prompt"), entry.at("method"),
                          entry.at("budget")};
      add(key, {entry.at("share"), entry.at("kept_ratio"), entry.at("seconds"), entry.at("steps"), entry.at("text")});
    }
  } catch (const Json::exception& error) {
    throw UserError(fmt::format("'{}' holds no answers of this program ({}); give a file that --answers wrote", label,
                                error.what()));
  }
}

}  // namespace glimpse::bench
