// Bytes out: results whose every write is checked, a progress bar, Ctrl-C. The main thread uses all of it; only the
// signal handler runs elsewhere.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace glimpse::cli {

/// Writes to a file or to standard output, and remembers the first failure: nothing that was written is lost, and what
/// could not be is reported once, by require_ok(). Owns its descriptor unless it is standard output.
class Output {
 public:
  static Output standard() { return Output(1, "standard output"); }
  /// Creates or empties the file. Throws UserError.
  explicit Output(const std::filesystem::path& path);
  ~Output();
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  /// Keeps the bytes until flush() or until there are many.
  void write(std::string_view bytes);
  void flush();
  bool failed() const { return error_ != 0; }
  /// Flushes, and throws UserError when any write has failed.
  void require_ok();

 private:
  Output(int file, std::string label) : file_(file), label_(std::move(label)) {}
  int file_;
  std::string label_;
  std::string pending_;
  int error_ = 0;
};

/// Prints a result to standard output. Throws UserError when it cannot be written.
void print(std::string_view text);
/// "error: TEXT" on standard error, one line whatever the text holds.
void print_error(std::string_view text);
/// A line for the person at the terminal, on standard error.
void print_note(std::string_view text);

/// Opens unreadable stand-ins for closed descriptors 0 to 2, so that no file of ours gets their numbers.
void reserve_standard_files();

/// Columns of the terminal that the file is; none where it is no terminal or does not say.
std::optional<std::size_t> terminal_columns(int file);

/// "prefill 1024/6012 tokens, 17 %, 350.1 tokens/s, 14 s left" in one line of a terminal, cut to its width; nothing
/// where standard error is no terminal or TERM is dumb.
class ProgressBar {
 public:
  ProgressBar(std::string_view label, std::string_view unit, bool wanted);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void update(std::int64_t done, std::int64_t total);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_, unit_;
  bool enabled_, shown_ = false;
  Clock::time_point start_ = Clock::now(), last_{};
};

/// While one lives, the first Ctrl-C only sets requested(); a second ends the program.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  bool requested() const;
};

}  // namespace glimpse::cli
