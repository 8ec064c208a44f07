// Vocabularies and wishes for tests of grammars. Pure functions; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glimpse/text/grammar.h"

namespace glimpse::text {

/// A vocabulary of all bytes, and some longer texts; the last token ends a text.
inline std::shared_ptr<const TokenTexts> some_texts(std::vector<std::string> longer = {}) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  texts.insert(texts.end(), longer.begin(), longer.end());
  texts.emplace_back("</s>");
  const auto end = static_cast<Token>(texts.size() - 1);
  return std::make_shared<const TokenTexts>(std::move(texts), std::vector{end});
}

inline GrammarWish wish_for(std::string_view gbnf, std::shared_ptr<const TokenTexts> texts, std::string said = {},
                            std::vector<std::string> triggers = {}) {
  return {std::make_shared<const Grammar>(gbnf, std::move(texts)), std::move(said), std::move(triggers)};
}

}  // namespace glimpse::text
