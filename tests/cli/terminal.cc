#include "tests/cli/terminal.h"

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#include "tests/support/places.h"

namespace glimpse::cli {

Shown run_in_terminal(const std::vector<std::string>& words, const Terminal& terminal) {
  std::vector<std::string> all{test::glimpse_program().string()};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  winsize size{};
  size.ws_row = 24;
  size.ws_col = terminal.columns;
  int master = -1;
  const pid_t pid = ::forkpty(&master, nullptr, nullptr, &size);
  if (pid < 0) throw std::runtime_error("forkpty");
  if (pid == 0) {
    ::setenv("TERM", terminal.kind.c_str(), 1);
    // Of the user's own profiles none.
    const std::string none = test::models_folder() / "no-data";
    ::setenv("XDG_DATA_HOME", (terminal.data_home.empty() ? none : terminal.data_home).c_str(), 1);
    ::execv(all.front().c_str(), arguments.data());
    ::_exit(127);
  }
  if (!terminal.input.empty() && ::write(master, terminal.input.data(), terminal.input.size()) < 0) {
    throw std::runtime_error("write to the terminal");
  }
  Shown shown;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(master, buffer, sizeof buffer)) > 0;) {
    shown.bytes.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(master);
  int status = 0;
  ::waitpid(pid, &status, 0);
  shown.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return shown;
}

std::size_t longest_line(const std::string& bytes) {
  std::size_t longest = 0, length = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == '\x1b') {
      while (i + 1 < bytes.size() && (bytes[i] < 'A' || bytes[i] > 'z' || bytes[i] == '[')) ++i;
    } else if (bytes[i] == '\r' || bytes[i] == '\n') {
      length = 0;
    } else {
      longest = std::max(longest, ++length);
    }
  }
  return longest;
}

}  // namespace glimpse::cli
