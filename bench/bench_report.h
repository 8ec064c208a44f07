// What every measuring program needs around its numbers: flags, the head of its JSON, files that are whole or not
// there, time left. One thread.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "glimpse/engine/engine.h"

namespace CLI {
class App;
}

namespace glimpse::bench {

/// Parses the words and runs `body`; returns the exit status. Errors are a line on standard error: 2 for the user's,
/// 70 for a bug.
int run_program(CLI::App& app, std::span<char*> words, const std::function<void()>& body);

/// The words with paths cut to file names: what a published result may say of a command.
std::string command_line(std::span<char*> words);

/// {"commit", "machine", "command", "benchmark"}, one JSON object as text: of a program that loads no model.
std::string header_json(const std::string& command);

/// {"commit", "machine", "command", "model", "kv_type", "threads", "benchmark"}, one JSON object as text.
std::string header_json(const engine::Engine& engine, const std::string& command, const std::string& model);

/// Puts the text in the file's place, whole or not at all. Throws UserError.
void write_file(const std::string& path, const std::string& text);

/// Throws UserError, naming the flag, unless low <= value <= high.
void require_range(const char* flag, std::int64_t value, std::int64_t low, std::int64_t high);

/// Lines on standard error with the time left, guessed from the work that is done.
class Progress {
 public:
  /// `total`: work to do in any unit.
  explicit Progress(double total) : total_(total) {}
  /// A line about something that is no unit of work.
  void note(const std::string& text) const;
  /// `work` that needs not be done after all.
  void drop(double work) { total_ -= work; }
  /// `work` is done; prints the line.
  void done(double work, const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  double total_, done_ = 0;
  Clock::time_point start_ = Clock::now();
};

}  // namespace glimpse::bench
