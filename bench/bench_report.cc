#include "bench/bench_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/cli/machine.h"
#include "glimpse/evaluate/stream.h"
#include "glimpse/evaluate/thread_team.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::bench {
namespace {

/// NAME/KEY=VALUE: slashes that are no path's.
bool is_method(const std::string& word) {
  const std::size_t slash = word.find('/');
  const auto in_name = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; };
  return slash != std::string::npos && slash > 0 && word.find('=') != std::string::npos &&
         std::all_of(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(slash), in_name);
}

std::string duration(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 90 * 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

/// The day, in UTC.
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm day{};
  ::gmtime_r(&now, &day);
  return fmt::format("{:04}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
}

std::int64_t memory_bytes() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

bool is_flat(const Json& object) {
  return object.is_object() &&
         std::none_of(object.begin(), object.end(), [](const Json& v) { return v.is_structured(); });
}

std::string value_text(const Json& value) {
  if (!value.is_number_float()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  const auto number = value.get<double>();
  if (!std::isfinite(number)) return "null";
  if (number == std::round(number) && std::fabs(number) < 9e15) return fmt::format("{:.0f}", number);
  return fmt::format("{:.6g}", number);
}

std::string object_text(const Json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", Json(key).dump(), value_text(value));
  }
  return "{" + text + "}";
}

int fail(const char* kind, const char* what, int status) {
  std::fprintf(stderr, "%s: %s\n", kind, what);
  return status;
}

/// In single quotes where a shell would not read the word as it is.
std::string as_shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return c >= 0x80 || std::isalnum(c) != 0 || std::strchr("-_=+/.,:@%", c) != nullptr;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

int run_program(CLI::App& app, std::span<char*> words, const std::function<void()>& body) {
  try {
    app.parse(static_cast<int>(words.size()), words.data());
    log_to_stderr(LogLevel::warning);
    body();
    return 0;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    return fail("error", fmt::format("{}; see --help", error.what()).c_str(), 2);
  } catch (const UserError& error) {
    return fail("error", error.what(), 2);
  } catch (const std::exception& error) {
    return fail("bug", error.what(), 70);
  }
}

std::string command_line(std::span<char*> words) {
  std::string line;
  for (const std::string word : words) {
    // --flag=a,b as well as a,b
    const std::size_t value = word.starts_with("--") ? word.find('=') + 1 : 0;
    std::string said = word.substr(0, value);
    for (std::size_t begin = value; begin <= word.size();) {
      const std::size_t end = std::min(word.find(',', begin), word.size());
      const std::string piece = word.substr(begin, end - begin);
      said += (begin > value ? "," : "") + (is_method(piece) ? piece : file_name(piece));
      begin = end + 1;
    }
    line += (line.empty() ? "" : " ") + as_shell_word(said);
  }
  return line;
}

std::string file_name(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

Report::Report(std::string path, const std::string& command, int threads) : path_(std::move(path)) {
  head_ = {{"schema", 1},
           {"benchmark", command.substr(0, command.find(' '))},
           {"commit", cli::commit()},
           {"date", today()},
           {"machine",
            {{"cpu", cli::cpu_name()},
             {"isa", kernels::instruction_set()},
             {"cores", cli::cpu_cores()},
             {"memory", memory_bytes()},
             {"read_bandwidth", nullptr}}},
           {"command", command},
           {"model", nullptr}};
  set("threads", threads);
  if (path_.empty()) return;
  evaluate::ThreadTeam team(threads);
  evaluate::Stream stream;
  constexpr int kReads = 9;
  std::vector<double> reads;
  for (int i = 0; i < kReads; ++i) reads.push_back(stream.bandwidth(team));
  std::sort(reads.begin(), reads.end());
  head_["machine"]["read_bandwidth"] = std::round(reads[kReads / 2]);
}

Report::Report(std::string path, const std::string& command, const engine::Engine& engine, const std::string& model)
    : Report(std::move(path), command, engine.threads()) {
  head_["model"] = file_name(model);
  set("kv_type", name(engine.kv_type()));
}

void Report::set(const std::string& key, const Json& value) {
  check(!value.is_structured(), "settings of a report are flat");
  settings_[key] = value;
}

void Report::add(const Json& row) {
  check(is_flat(row), "rows of a report are flat");
  rows_.push_back(row);
}

std::string Report::text() const {
  std::string text = "{";
  for (const auto& [key, value] : head_.items()) {
    text += fmt::format("\n {}: {},", Json(key).dump(), value.is_object() ? object_text(value) : value_text(value));
  }
  text += fmt::format("\n \"settings\": {},\n \"rows\": [", object_text(settings_));
  for (std::size_t i = 0; i < rows_.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + object_text(rows_[i]);
  return text + (rows_.empty() ? "]\n}" : "\n ]\n}");
}

void Report::write() const {
  if (!path_.empty()) write_file(path_, text());
}

void write_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".part";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << text << "\n";
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path, error);
  if (!file || error) {
    throw UserError(fmt::format("cannot write '{}'; give --json a file in a folder that can be written", path));
  }
}

void require_range(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw UserError(fmt::format("{} {}: give a number from {} to {}", flag, value, low, high));
}

void Progress::note(const std::string& text) const {
  std::fprintf(stderr, "%s\n", text.c_str());
}

void Progress::done(double work, const std::string& text) {
  done_ += work;
  const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
  const double left = done_ > 0 ? elapsed / done_ * (total_ - done_) : 0;
  std::fprintf(stderr, "[%3.0f %%] %s; about %s left\n", 100 * done_ / total_, text.c_str(), duration(left).c_str());
}

}  // namespace glimpse::bench
