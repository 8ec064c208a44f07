// What every measuring program needs around its numbers: flags, its file of results, files that are whole or not there,
// time left. One thread.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "glimpse/engine/engine.h"

namespace CLI {
class App;
}

namespace glimpse::bench {

using Json = nlohmann::ordered_json;

/// Parses the words and runs `body`; returns the exit status. Errors are a line on standard error: 2 for the user's,
/// 70 for a bug.
int run_program(CLI::App& app, std::span<char*> words, const std::function<void()>& body);

/// The words with paths cut to file names: what a published result may say of a command.
std::string command_line(std::span<char*> words);

/// Puts the text in the file's place, whole or not at all. Throws UserError.
void write_file(const std::string& path, const std::string& text);

/// Throws UserError, naming the flag, unless low <= value <= high.
void require_range(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high);

/// The name of a file without its folder.
std::string file_name(const std::string& path);

/// The file of results that a benchmark writes, the same for all of them (bench/README.md): a head that says what ran
/// where, `settings` that hold for all rows, and rows. Settings and rows are flat: their values are numbers, texts,
/// true, false or null. The constructor measures the memory's read bandwidth, so it runs before anything is timed.
class Report {
 public:
  /// An empty path: nothing is written, and nothing is measured. `threads` are those that the benchmark uses.
  Report(std::string path, const std::string& command, int threads);
  /// With the engine's model, cache type and threads.
  Report(std::string path, const std::string& command, const engine::Engine& engine, const std::string& model);

  const std::string& path() const { return path_; }
  void set(const std::string& key, const Json& value);
  void add(const Json& row);
  void clear_rows() { rows_ = Json::array(); }
  const Json& rows() const { return rows_; }

  /// The file's text: a line for each field of the head and for each row, numbers to six digits.
  std::string text() const;
  /// Writes text() to the file, if there is one. Throws UserError.
  void write() const;

 private:
  std::string path_;
  Json head_, settings_ = Json::object(), rows_ = Json::array();
};

/// Lines on standard error with the time left, guessed from the work that is done.
class Progress {
 public:
  /// `total`: work to do in any unit.
  explicit Progress(double total) : total_(total) {}
  /// A line about something that is no unit of work.
  void note(const std::string& text) const;
  /// `work` is done; prints the line.
  void done(double work, const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  double total_, done_ = 0;
  Clock::time_point start_ = Clock::now();
};

}  // namespace glimpse::bench
