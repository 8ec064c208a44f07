#include "glimpse/cli/score_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>

#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/bench_report.h"
#include "glimpse/cli/commands.h"
#include "glimpse/plan/profile.h"

namespace glimpse::cli {
namespace {

using Json = nlohmann::ordered_json;
using evaluate::Cell;

constexpr std::string_view kAllTasks = "all";

/// Four significant digits.
Json rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  const double near = std::stod(fmt::format("{:.4g}", value));
  return near == std::round(near) && std::fabs(near) < 9e15 ? Json(static_cast<std::int64_t>(near)) : Json(near);
}

Json row_of(const Cell& cell) {
  return {{"task", cell.task.empty() ? std::string(kAllTasks) : cell.task},
          {"length", cell.length},
          {"depth", cell.depth ? Json(*cell.depth) : Json()},
          {"arm", cell.arm},
          {"asked", cell.asked},
          {"right", cell.right},
          {"score", rounded(cell.score)},
          {"low", rounded(cell.interval.low)},
          {"high", rounded(cell.interval.high)},
          {"dense", rounded(cell.dense)},
          {"divergence", rounded(cell.divergence)},
          {"agreement", rounded(cell.agreement)},
          {"kept_ratio", rounded(cell.kept_ratio)},
          {"bytes_per_token", rounded(cell.bytes_per_token)},
          {"ms", cell.step_s ? rounded(1e3 * *cell.step_s) : Json()},
          {"cache_bytes", rounded(cell.cache_bytes)}};
}

std::vector<Json> rows_of(const ScoreReport& report) {
  std::vector<Json> rows;
  for (const Cell& cell : report.cells) rows.push_back(row_of(cell));
  for (const Cell& cell : report.overall) rows.push_back(row_of(cell));
  return rows;
}

std::vector<std::string> table_row(const Cell& cell, bool with_depth) {
  std::vector<std::string> row{cell.task.empty() ? std::string(kAllTasks) : cell.task, fmt::format("{}", cell.length)};
  if (with_depth) row.push_back(cell.depth ? fmt::format("{} %", *cell.depth) : "");
  row.insert(row.end(), {cell.arm, fmt::format("{:.1f}", 100 * cell.score),
                         fmt::format("{:.1f} to {:.1f}", 100 * cell.interval.low, 100 * cell.interval.high),
                         fmt::format("{}/{}", cell.right, cell.asked), fmt::format("{:.4f}", cell.divergence),
                         fmt::format("{:.1f}", 100 * cell.agreement), fmt::format("{:.1f}", 100 * cell.kept_ratio),
                         fmt::format("{:.2f}", cell.bytes_per_token / 1e6),
                         cell.step_s ? fmt::format("{:.2f}", 1e3 * *cell.step_s) : "",
                         fmt::format("{:.1f}", cell.cache_bytes / 1e6)});
  return row;
}

std::string cells_table(const std::vector<Cell>& cells) {
  bool depths = false;
  for (const Cell& cell : cells) depths = depths || cell.depth;
  std::vector<std::vector<std::string>> rows{{"task", "length"}};
  if (depths) rows.front().push_back("depth");
  for (const char* name :
       {"arm", "answers %", "95 %", "right", "KL", "top-1 %", "read %", "MB/token", "ms/token", "cache MB"}) {
    rows.front().emplace_back(name);
  }
  for (const Cell& cell : cells) rows.push_back(table_row(cell, depths));
  return table(rows, "md");
}

/// The day, in UTC.
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  ::gmtime_r(&now, &day);
  return fmt::format("{:04}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
}

std::string file_name(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

/// The command with paths cut to file names: what a published result may say of it.
std::string command_of(const BenchHeader& header) {
  std::string command;
  for (std::size_t begin = 0; begin <= header.command.size();) {
    const std::size_t end = std::min(header.command.find(' ', begin), header.command.size());
    command += (begin == 0 ? "" : " ") + file_name(header.command.substr(begin, end - begin));
    begin = end + 1;
  }
  return command;
}

Json head_of(const ScoreReport& report) {
  const BenchHeader& header = report.header;
  Json settings{{"threads", header.threads},
                {"kv_type", header.kv_type},
                {"seed", report.seed},
                {"examples", report.examples},
                {"fingerprint", report.fingerprint},
                {"complete", report.complete},
                {"filler", report.filler.empty() ? "generated" : report.filler}};
  for (const auto& [where, what] : report.taken) settings[where] = what;
  const std::int64_t memory = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  return {{"schema", 1},
          {"benchmark", "glimpse"},
          {"commit", header.commit},
          {"date", today()},
          {"machine",
           {{"cpu", header.cpu},
            {"isa", header.instruction_set},
            {"cores", header.cores},
            {"memory", memory},
            {"read_bandwidth", nullptr}}},
          {"command", command_of(header)},
          {"model", file_name(header.model)},
          {"settings", settings}};
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

ScoreReport score_report(const Arguments& arguments, const Exam& exam, const engine::Engine& engine,
                         const evaluate::Answers& answers) {
  ScoreReport report;
  report.header = header_of(arguments, engine.threads());
  report.seed = arguments.seed;
  report.examples = exam.examples;
  if (!arguments.files.empty()) report.filler = file_name(arguments.files.front());
  report.cells = answers.cells(exam.tasks, exam.arm_names());
  report.overall = answers.overall(exam.tasks, exam.arm_names());
  return report;
}

int print_scores(const Arguments& arguments, const Exam& exam, const engine::Engine& engine, const Found& found) {
  if (found.answers.size() == 0) {
    print_note("interrupted before the first answer");
    return kExitInterrupted;
  }
  ScoreReport report = score_report(arguments, exam, engine, found.answers);
  report.complete = found.complete;
  print(arguments.json ? score_json(report) + "\n" : score_table(report));
  if (!found.complete) print_note("interrupted: the result is that of the prompts answered so far");
  return found.complete ? kExitOk : kExitInterrupted;
}

std::string score_table(const ScoreReport& report) {
  std::string text = cells_table(report.cells);
  if (!report.overall.empty() && report.cells.size() > report.overall.size())
    text += "\n" + cells_table(report.overall);
  return text;
}

std::string score_json(const ScoreReport& report) {
  Json rows = Json::array();
  for (const Json& row : rows_of(report)) rows.push_back(row);
  return text_of({{"model", report.header.model},
                  {"seed", report.seed},
                  {"examples", report.examples},
                  {"complete", report.complete},
                  {"rows", rows}});
}

std::string scoreboard_json(const ScoreReport& report) {
  std::string text = "{";
  const Json head = head_of(report);
  for (const auto& [key, value] : head.items()) text += fmt::format("\n \"{}\": {},", key, text_of(value));
  const std::vector<Json> rows = rows_of(report);
  Json columns = Json::array();
  if (!rows.empty()) {
    for (const auto& [key, value] : rows.front().items()) columns.push_back(key);
  }
  text += fmt::format("\n \"columns\": {},\n \"rows\": [", text_of(columns));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Json values = Json::array();
    for (const auto& [key, value] : rows[i].items()) values.push_back(value);
    text += (i == 0 ? "\n" : ",\n") + text_of(values);
  }
  return text + "\n ]\n}\n";
}

std::string scoreboard_markdown(const ScoreReport& report) {
  const BenchHeader& header = report.header;
  std::string text = fmt::format(
      "# Scoreboard\n\n`{}`\n\nModel {} ({}), {} prompts of each task, length and depth, seed {}, {}. {} cores, {}, "
      "{}; "
      "{} threads, {} cache; commit {}.\n{}\n",
      command_of(header), file_name(header.model), report.fingerprint, report.examples, report.seed,
      report.filler.empty() ? "generated prose" : "prose of " + report.filler, header.cores, header.cpu,
      header.instruction_set, header.threads, header.kv_type, header.commit,
      report.complete ? "" : "\nThe run was interrupted: cells have the prompts that were answered.\n");
  for (const auto& [where, what] : report.taken) text += fmt::format("{}: {}\n\n", where, what);
  return text + "## All tasks\n\n" + cells_table(report.overall) + "\n## Each task\n\n" + cells_table(report.cells);
}

}  // namespace glimpse::cli
