#include "rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <sstream>
#include <utility>

namespace glimpse::structure {
namespace {

constexpr int kMostLines = 600;

struct ThirdParty {
  std::string_view prefix;
  std::string_view folders;  ///< separated by blanks; "*" all
  bool sources_only = false;
};

/// The first row whose prefix fits decides.
constexpr ThirdParty kThirdParty[] = {
    {"fmt/", "*"},
    {"spdlog/", "base"},
    {"nlohmann/json_fwd.hpp", "server"},
    {"nlohmann/", "plan text cli server", true},
    {"boost/", "server"},
    {"hwy/", "kernels"},
    {"Eigen/", "kv", true},
    {"llama.h", "text"},
    {"jinja/", "text"},
    {"chat.h", "text", true},
    {"json-schema-to-grammar.h", "text", true},
    {"json.h", "text", true},  // the Jinja engine's own values
    {"gguf.h", "text", true},  // the metadata-only context that llama's vocabulary loads from
    {"ggml", "model exec train"},
    {"ATen/", "train"},
    {"c10/", "train"},
    {"CLI/", "cli"},
    {"cuda_", "kernels exec"},
    {"cuda.h", "kernels"},
    {"cooperative_groups.h", "kernels exec"},
};

constexpr std::string_view kSystemHeaders[] = {"dlfcn.h", "fcntl.h",  "immintrin.h", "poll.h",  "pthread.h",
                                               "sched.h", "signal.h", "termios.h",   "unistd.h"};

constexpr std::pair<std::string_view, std::string_view> kNeverEdges[] = {
    {"policies", "attention"}, {"attention", "policies"}, {"engine", "kernels"},
    {"text", "model"},         {"model", "text"},         {"server", "kernels"},
};

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool lists(std::string_view folders, const std::string& folder) {
  std::istringstream words{std::string(folders)};
  for (std::string word; words >> word;) {
    if (word == "*" || word == folder) return true;
  }
  return false;
}

/// Of a header, its source and `NAME_impl.h` the same.
std::string without_ending(const std::string& path) {
  const std::string name = path.substr(0, path.rfind('.'));
  constexpr std::string_view kImpl = "_impl";
  return name.ends_with(kImpl) ? name.substr(0, name.size() - kImpl.size()) : name;
}

using Arrows = std::map<std::string, std::set<std::string>>;

bool leads(const Arrows& arrows, const std::string& from, const std::string& to, std::set<std::string>& seen) {
  if (from == to) return true;
  const auto next = arrows.find(from);
  if (next == arrows.end() || !seen.insert(from).second) return false;
  return std::any_of(next->second.begin(), next->second.end(),
                     [&](const std::string& other) { return leads(arrows, other, to, seen); });
}

/// Words of a CMake file without comments; parentheses are words of their own.
std::vector<std::string> cmake_words(std::string_view cmake) {
  std::vector<std::string> words;
  std::istringstream lines{std::string(cmake)};
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.size(), line.find('#')));
    std::string spaced;
    for (const char c : line) spaced += c == '(' || c == ')' ? std::string{' ', c, ' '} : std::string{c};
    std::istringstream stream(spaced);
    for (std::string word; stream >> word;) words.push_back(word);
  }
  return words;
}

bool keyword(const std::string& word) {
  return word == ")" || std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isupper(c) != 0; });
}

}  // namespace

std::string SourceFile::folder() const {
  constexpr std::string_view root = "glimpse/";
  if (!starts_with(path, root)) return "";
  const std::size_t slash = path.find('/', root.size());
  return slash == std::string::npos ? "" : path.substr(root.size(), slash - root.size());
}

std::vector<std::string> includes_of(std::string_view text) {
  std::vector<std::string> found;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::size_t at = line.find_first_not_of(" \t");
    if (at == std::string::npos || line[at] != '#') continue;
    at = line.find_first_not_of(" \t", at + 1);
    if (at == std::string::npos || !starts_with(std::string_view(line).substr(at), "include")) continue;
    const std::size_t open = line.find_first_of("<\"", at);
    if (open == std::string::npos) continue;  // a macro names the file, as Highway's foreach_target does
    const std::size_t close = line.find_first_of(">\"", open + 1);
    if (close != std::string::npos) found.push_back(line.substr(open + 1, close - open - 1));
  }
  return found;
}

std::set<std::string> depends_of(std::string_view cmake, std::string_view folder) {
  std::set<std::string> depends;
  const std::vector<std::string> words = cmake_words(cmake);
  for (std::size_t i = 0; i + 2 < words.size(); ++i) {
    if (words[i] == "glimpse_module" && words[i + 2] == folder) {
      std::size_t at = i + 3;
      while (at < words.size() && words[at] != ")" && words[at] != "DEPENDS") ++at;
      if (at == words.size() || words[at] == ")") continue;
      for (++at; at < words.size() && !keyword(words[at]); ++at) depends.insert(words[at]);
    }
    if (words[i] == "target_link_libraries") {
      for (std::size_t at = i + 3; at < words.size() && words[at] != ")"; ++at) {
        if (starts_with(words[at], "glimpse_")) depends.insert(words[at].substr(8));
      }
    }
  }
  return depends;
}

std::vector<std::string> folder_order(std::string_view cmake) {
  std::vector<std::string> folders;
  const std::vector<std::string> words = cmake_words(cmake);
  const auto start = std::find(words.begin(), words.end(), "GLIMPSE_FOLDERS");
  if (start == words.end()) return folders;
  for (auto word = start + 1; word != words.end() && !keyword(*word); ++word) folders.push_back(*word);
  return folders;
}

std::string include_problem(const SourceFile& file, const std::string& include, const std::set<std::string>& depends) {
  const std::string from = file.folder();
  const std::string what = file.path + " includes " + include;
  if (starts_with(include, "glimpse/")) {
    const std::string to = SourceFile{include, ""}.folder();
    if (to == from || depends.count(to) != 0) return edge_problem(from, to);
    return what + ", but DEPENDS in glimpse/" + from + "/CMakeLists.txt does not name " + to;
  }
  for (const ThirdParty& row : kThirdParty) {
    if (!starts_with(include, row.prefix)) continue;
    if (!lists(row.folders, from)) return what + ", which only these folders may: " + std::string(row.folders);
    if (row.sources_only && file.header()) return what + ", which only .cc files may";
    return "";
  }
  if (starts_with(include, "sys/")) return "";
  if (std::find(std::begin(kSystemHeaders), std::end(kSystemHeaders), include) != std::end(kSystemHeaders)) return "";
  if (include.find_first_of("./") == std::string::npos) return "";  // the standard library
  return what + ": neither a path from the repository's root nor in the table of third-party headers";
}

std::string header_problem(const SourceFile& file) {
  if (!file.header()) return "";
  if (!starts_with(file.text, "//")) return file.path + " does not start with a comment that says what it is";
  // Highway's per-target headers are read once for each target.
  const bool per_target = file.text.find("HWY_TARGET_TOGGLE") != std::string::npos;
  if (!per_target && file.text.find("\n#pragma once\n") == std::string::npos) return file.path + " lacks #pragma once";
  return "";
}

std::string length_problem(const SourceFile& file) {
  const auto lines = std::count(file.text.begin(), file.text.end(), '\n');
  if (lines <= kMostLines) return "";
  return file.path + " has " + std::to_string(lines) + " lines, more than " + std::to_string(kMostLines);
}

std::vector<std::string> circle_problems(const std::vector<SourceFile>& files, const std::string& folder) {
  Arrows arrows;
  for (const SourceFile& file : files) {
    if (!starts_with(file.path, folder)) continue;
    const std::string from = without_ending(file.path);
    for (const std::string& include : includes_of(file.text)) {
      const std::string to = without_ending(include);
      if (starts_with(to, folder) && to != from) arrows[from].insert(to);
    }
  }
  std::vector<std::string> problems;
  for (const auto& [from, to] : arrows) {
    for (const std::string& other : to) {
      std::set<std::string> seen;
      if (leads(arrows, other, from, seen))
        problems.push_back(from + " includes " + other + ", which leads back to it");
    }
  }
  return problems;
}

std::string edge_problem(const std::string& from, const std::string& to) {
  for (const auto& [first, second] : kNeverEdges) {
    if (from == first && to == second) return from + " must never see " + to;
  }
  return "";
}

}  // namespace glimpse::structure
