// Grammars and JSON schemas: each is refused or made, and then an answer that obeys goes on until it ends; what JSON
// the grammar of a schema lets out parses. The corpus starts from what schema_seeds writes.
//
// The first byte of an input says whether the rest is a schema, and seeds the answer.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

#include "glimpse/base/error.h"
#include "glimpse/text/grammar.h"
#include "glimpse/text/json_grammar.h"

using namespace glimpse;
using namespace glimpse::text;

namespace {

constexpr int kMostTokens = 64;

const std::shared_ptr<const TokenTexts>& some_texts() {
  static const auto texts = [] {
    std::vector<std::string> all;
    for (int byte = 0; byte < 256; ++byte) all.emplace_back(1, static_cast<char>(byte));
    for (const char* word : {"{\"", "\": ", "true", "null", "12", "\\u", "é", "  ", "]}"}) all.emplace_back(word);
    return std::make_shared<const TokenTexts>(std::move(all), std::vector<Token>{});
  }();
  return texts;
}

/// An answer at random; true where the grammar let it end.
bool answer(const std::shared_ptr<const Grammar>& grammar, std::uint32_t seed, std::string& text) {
  GrammarFollower at({grammar, {}, {}});
  std::mt19937 random(seed);
  for (int step = 0; step < kMostTokens && !at.must_end(); ++step) {
    const auto allowed = at.allowed();
    std::vector<Token> possible;
    for (Token token = 0; token < static_cast<Token>(some_texts()->size()); ++token) {
      if (allowed->has(token) != at.allows(token)) std::abort();
      if (allowed->has(token)) possible.push_back(token);
    }
    if (possible.empty()) return at.may_end();
    const Token next = possible[random() % possible.size()];
    text += some_texts()->text(next);
    at.accept(next);
  }
  return at.may_end();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool schema = data[0] % 4 == 0;  // each takes a process
  try {
    const std::string gbnf =
        schema ? json_schema_grammar(rest, schema_limits(std::chrono::milliseconds(2000))) : std::string(rest);
    std::string text;
    const bool ended = answer(std::make_shared<const Grammar>(gbnf, some_texts()), data[0], text);
    // A pattern's text is a string's as llama.cpp translates it; a number may be over what a double holds.
    const bool plain = rest.find("pattern") == std::string_view::npos && text.find_first_of("eE") == std::string::npos;
    if (schema && ended && plain && !nlohmann::json::accept(text)) std::abort();
  } catch (const UserError&) {  // refused
  }
  return 0;
}
