#include "tests/cli/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "tests/support/places.h"

namespace glimpse::cli {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    read = ends[0];
    write = ends[1];
  }
};

}  // namespace

Outcome run_program(const std::vector<std::string>& words, const Setting& setting) {
  std::signal(SIGPIPE, SIG_IGN);
  Pipe in, out, err;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.read, 0);
  if (setting.out_file.empty()) {
    posix_spawn_file_actions_adddup2(&actions, out.write, 1);
  } else {
    posix_spawn_file_actions_addopen(&actions, 1, setting.out_file.c_str(), O_WRONLY | O_CREAT, 0666);
  }
  posix_spawn_file_actions_adddup2(&actions, err.write, 2);

  const std::string program = (setting.program.empty() ? test::glimpse_program() : setting.program).string();
  std::vector<std::string> all{program};
  // Limits of our own would bind this process too.
  if (setting.address_space > 0 || setting.open_files > 0) {
    const std::int64_t most = setting.address_space > 0 ? setting.address_space : setting.open_files;
    const std::string limit = setting.address_space > 0 ? "ulimit -v" : "ulimit -n";
    all = {"/bin/sh", "-c", limit + " \"$0\" && exec \"$@\"", std::to_string(most), program};
  }
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments, environment;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  // Of the user's own settings and profiles none.
  std::vector<std::string> variables{fmt::format("XDG_DATA_HOME={}/no-data", test::models_folder().string())};
  for (const std::string& variable : setting.environment) {
    if (variable.starts_with("XDG_DATA_HOME=")) variables.clear();
  }
  variables.insert(variables.end(), setting.environment.begin(), setting.environment.end());
  const auto is_set = [&](std::string_view inherited) {
    const std::string_view name = inherited.substr(0, inherited.find('=') + 1);
    return std::any_of(variables.begin(), variables.end(), [&](const auto& own) { return own.starts_with(name); });
  };
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "GLIMPSE_ARG_", 12) != 0 && !is_set(*variable)) environment.push_back(*variable);
  }
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);

  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, all.front().c_str(), &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  for (const int end : {in.read, out.write, err.write}) ::close(end);
  if (error != 0) throw std::runtime_error("posix_spawn");

  // Inputs of tests fit a pipe.
  if (!setting.input.empty() && ::write(in.write, setting.input.data(), setting.input.size()) < 0) {
    ADD_FAILURE() << "the program did not take its input";
  }
  ::close(in.write);

  Outcome outcome;
  pollfd ends[2] = {{out.read, POLLIN, 0}, {err.read, POLLIN, 0}};
  for (int open = 2; open > 0;) {
    ::poll(ends, 2, -1);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[65536];
      const ssize_t got = ::read(ends[i].fd, buffer, sizeof buffer);
      if (got <= 0) {
        ::close(ends[i].fd);
        ends[i].fd = -1;
        --open;
        continue;
      }
      (i == 0 ? outcome.out : outcome.err).append(buffer, static_cast<std::size_t>(got));
      if (i == 0 && setting.on_output_bytes) setting.on_output_bytes(pid, outcome.out);
      if (i == 1 && setting.on_error_bytes) setting.on_error_bytes(pid, outcome.err);
    }
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

void expect_refused(const std::vector<std::string>& words, const std::string& part, const Setting& setting) {
  std::string shown;
  for (const std::string& word : words) shown.append(" ").append(word, 0, 40);
  SCOPED_TRACE(shown);
  const Outcome outcome = run_program(words, setting);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("error: ", 0), 0u) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << "no '" << part << "' in: " << outcome.err;
}

std::string model(const std::string& name) {
  return (test::models_folder() / (name + ".gguf")).string();
}

std::filesystem::path scratch(const std::string& name) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string unique = std::string(test->test_suite_name()) + "." + test->name();
  for (char& c : unique) c = c == '/' ? '_' : c;
  const auto folder = test::models_folder().parent_path() / "cli-scratch" / unique;
  static std::string last;
  if (last != unique) std::filesystem::remove_all(folder);
  last = unique;
  std::filesystem::create_directories(folder);
  return folder / name;
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string prose(int sentences) {
  const std::vector<std::string> words{"the",  "river", "was",     "high",  "and",  "nobody", "walked", "along",
                                       "road", "until", "morning", "light", "came", "over",   "hills",  "again"};
  std::string text;
  unsigned state = 12345;
  for (int i = 0; i < sentences; ++i) {
    for (int j = 0; j < 10; ++j) {
      state = state * 1664525u + 1013904223u;
      text += words[(state >> 16) % words.size()] + (j == 9 ? ". " : " ");
    }
  }
  return text;
}

std::vector<std::string> run_words(const std::vector<std::string>& more) {
  std::vector<std::string> words{"run", "-m", model(), "-t", "2"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

nlohmann::json run_for_json(std::vector<std::string> words, const Setting& setting) {
  words.push_back("--json");
  const Outcome outcome = run_program(words, setting);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 1) << outcome.out;
  const nlohmann::json json = nlohmann::json::parse(outcome.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << outcome.out;
  return json.is_object() ? json : nlohmann::json::object();
}

}  // namespace glimpse::cli
