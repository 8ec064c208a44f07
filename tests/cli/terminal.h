// Runs the built program in a terminal of a given kind and width. One thread.
#pragma once

#include <string>
#include <vector>

namespace glimpse::cli {

struct Terminal {
  std::string kind = "xterm";  ///< TERM
  unsigned short columns = 80;
  std::string input;
  std::string data_home = {};  ///< XDG_DATA_HOME; empty: a folder that is not there
};

struct Shown {
  int code = -1;
  std::string bytes;  ///< standard output and standard error, as they came
};

Shown run_in_terminal(const std::vector<std::string>& words, const Terminal& terminal);

/// Bytes of the longest line that stands in the terminal at any time, control sequences not counted.
std::size_t longest_line(const std::string& bytes);

}  // namespace glimpse::cli
