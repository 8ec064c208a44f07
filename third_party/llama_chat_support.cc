// The few functions that llama.cpp's chat parsers take from the rest of its common library, which would bring downloads,
// arguments and samplers with it: written anew, to its declarations. Nothing is logged.
#include <common.h>
#include <log.h>

std::string string_join(const std::vector<std::string>& values, const std::string& separator) {
  std::string out;
  for (const std::string& value : values) {
    if (&value != &values.front()) out += separator;
    out += value;
  }
  return out;
}

std::vector<std::string> string_split(const std::string& text, const std::string& delimiter) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  if (!delimiter.empty()) {
    for (std::size_t end = text.find(delimiter); end != std::string::npos; end = text.find(delimiter, begin)) {
      parts.push_back(text.substr(begin, end - begin));
      begin = end + delimiter.size();
    }
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::string string_repeat(const std::string& text, std::size_t times) {
  std::string out;
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

void string_replace_all(std::string& text, const std::string& search, const std::string& replacement) {
  if (search.empty()) return;
  for (std::size_t at = text.find(search); at != std::string::npos; at = text.find(search, at + replacement.size())) {
    text.replace(at, search.size(), replacement);
  }
}

// Of a template that is built from a model, and of message delimiters that are tokens: glimpse does neither.
std::string common_token_to_piece(const llama_vocab*, llama_token, bool) {
  return {};
}
std::vector<llama_token> common_tokenize(const llama_vocab*, const std::string&, bool, bool) {
  return {};
}

int common_log_get_verbosity_thold() {
  return LOG_LEVEL_OUTPUT - 1;
}
common_log* common_log_main() {
  return nullptr;
}
void common_log_add(common_log*, ggml_log_level, const char*, ...) {}
