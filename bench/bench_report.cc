#include "bench/bench_report.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "glimpse/base/error.h"
#include "glimpse/base/log.h"
#include "glimpse/cli/machine.h"
#include "glimpse/kernels/attention.h"

namespace glimpse::bench {
namespace {

std::string file_name(const std::string& word) {
  const std::size_t slash = word.find_last_of('/');
  return slash == std::string::npos ? word : word.substr(slash + 1);
}

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

nlohmann::ordered_json header_of(const std::string& command) {
  return {{"commit", cli::commit()},
          {"machine",
           {{"cpu", cli::cpu_name()}, {"cores", cli::cpu_cores()}, {"instruction_set", kernels::instruction_set()}}},
          {"command", command}};
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

std::string header_json(const std::string& command) {
  nlohmann::ordered_json header = header_of(command);
  header["benchmark"] = command.substr(0, command.find(' '));
  return header.dump();
}

std::string header_json(const engine::Engine& engine, const std::string& command, const std::string& model) {
  nlohmann::ordered_json header = header_of(command);
  header["model"] = file_name(model);
  header["kv_type"] = name(engine.kv_type());
  header["threads"] = engine.threads();
  header["benchmark"] = command.substr(0, command.find(' '));
  return header.dump();
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
