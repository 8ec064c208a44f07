#include <cctype>
#include <regex>

#include "rules.h"

namespace glimpse::structure {
namespace {

constexpr int kMostFunctions = 15;

/// Without comments; literals are empty.
std::string bare(std::string_view text) {
  static const std::regex kNoise(R"(//[^\n]*|/\*[\s\S]*?\*/|"(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])*')");
  std::string code;
  const std::string all(text);
  std::size_t from = 0;
  for (std::sregex_iterator it(all.begin(), all.end(), kNoise), end; it != end; ++it) {
    const auto at = static_cast<std::size_t>(it->position());
    code.append(all, from, at - from);
    if (all[at] == '"') code += "\"\"";
    from = at + static_cast<std::size_t>(it->length());
  }
  return code.append(all, from);
}

/// What a class declares between `open`, its brace, and the brace that closes it: what stands in braces is left out,
/// and a brace that closes ends what it stands in.
std::vector<std::string> declarations(const std::string& code, std::size_t open) {
  std::vector<std::string> all(1);
  int depth = 1;
  for (std::size_t at = open + 1; at < code.size() && depth > 0; ++at) {
    const char c = code[at];
    if (c == '{') {
      ++depth;
    } else if (c == '}') {
      if (--depth == 1) all.emplace_back();
    } else if (depth == 1 && c == ';') {
      all.emplace_back();
    } else if (depth == 1) {
      all.back() += c;
    }
  }
  return all;
}

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '~';
}

/// The name of the function that is declared; empty: none is.
std::string function_of(std::string declaration) {
  static const std::regex kBefore(R"(\[\[[^\]]*\]\]|\b(public|private|protected)\s*:|\balignas\s*\([^)]*\))");
  static const std::regex kOther(
      R"(^\s*(template\s*<[^;]*>\s*)?(using|friend|typedef|static_assert|enum|struct|class|union)\b)");
  static const std::regex kDefaulted(R"(=\s*(default|delete)\s*$)");
  static const std::regex kOperator(R"(\boperator\b)");
  declaration = std::regex_replace(declaration, kBefore, "");
  if (std::regex_search(declaration, kOther) || std::regex_search(declaration, kDefaulted)) return "";
  if (std::regex_search(declaration, kOperator)) return "operator";
  int angles = 0;
  for (std::size_t at = 0; at < declaration.size(); ++at) {
    const char c = declaration[at];
    if (c == '<') ++angles;
    if (c == '>') --angles;
    if (c == '=' && angles == 0) return "";  // a member with a value
    if (c != '(' || angles > 0) continue;
    std::size_t end = at;
    while (end > 0 && std::isspace(static_cast<unsigned char>(declaration[end - 1])) != 0) --end;
    std::size_t begin = end;
    while (begin > 0 && is_name(declaration[begin - 1])) --begin;
    return declaration.substr(begin, end - begin);
  }
  return "";
}

}  // namespace

std::map<std::string, int> functions_of_classes(std::string_view text) {
  static const std::regex kClass(
      R"(\b(enum\s+)?(class|struct)\s+(\[\[[^\]]*\]\]\s*)?(\w+)(\s+final)?(\s*:\s*[^;{(]*)?\s*\{)");
  const std::string code = bare(text);
  std::map<std::string, int> counts;
  for (std::sregex_iterator it(code.begin(), code.end(), kClass), end; it != end; ++it) {
    if ((*it)[1].matched) continue;
    const std::string name = it->str(4);
    int& count = counts[name];
    for (const std::string& each : declarations(code, static_cast<std::size_t>(it->position() + it->length()) - 1)) {
      const std::string function = function_of(each);
      if (!function.empty() && function != name && function != "~" + name) ++count;
    }
  }
  return counts;
}

std::vector<std::string> class_problems(const SourceFile& file) {
  std::vector<std::string> problems;
  for (const auto& [name, count] : functions_of_classes(file.text)) {
    if (count > kMostFunctions) {
      problems.push_back(file.path + ": " + name + " has " + std::to_string(count) + " functions, more than " +
                         std::to_string(kMostFunctions));
    }
  }
  return problems;
}

}  // namespace glimpse::structure
