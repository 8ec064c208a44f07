// Runs the built program as a user does: words, environment, files in, bytes and exit code out. One thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace glimpse::cli {

struct Outcome {
  int code = -1;  ///< exit code; 128 + signal for one that was killed
  std::string out, err;
};

struct Setting {
  std::vector<std::string> environment;  ///< "GLIMPSE_ARG_TEMP=1"
  std::string input;
  std::filesystem::path program;   ///< a copy of the program; empty: the built one
  std::int64_t address_space = 0;  ///< KiB that the program may map; 0: any
  std::int64_t open_files = 0;     ///< that the program may have, in place of address_space; 0: any
  std::string out_file;            ///< where standard output goes instead of a pipe
  /// Called with the process id whenever standard error has given more bytes.
  std::function<void(int pid, const std::string& err)> on_error_bytes;
  /// Called with the process id whenever standard output has.
  std::function<void(int pid, const std::string& out)> on_output_bytes;
};

Outcome run_program(const std::vector<std::string>& words, const Setting& setting = {});
/// Expects that the program refuses the words: exit code 2, nothing on standard output, one line on standard error with
/// "error: " and `part`.
void expect_refused(const std::vector<std::string>& words, const std::string& part, const Setting& setting = {});

/// A small random model of the fixture.
std::string model(const std::string& name = "llama");
/// A file in a folder of this test's own, emptied at its first use.
std::filesystem::path scratch(const std::string& name);
void write_file(const std::filesystem::path& path, const std::string& text);
std::string read_file(const std::filesystem::path& path);
/// Some hundreds of tokens.
std::string prose(int sentences);

/// The words of a short greedy run on the small model, and more.
std::vector<std::string> run_words(const std::vector<std::string>& more);
/// Runs with --json; fails the test when the program fails or prints anything but one object.
nlohmann::json run_for_json(std::vector<std::string> words, const Setting& setting = {});

}  // namespace glimpse::cli
