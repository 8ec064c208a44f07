#include "glimpse/text/token_texts.h"

#include <algorithm>

namespace glimpse::text {

TokenTexts::TokenTexts(std::vector<std::string> texts, const std::vector<Token>& ends) : texts_(std::move(texts)) {
  for (const Token token : ends) texts_[static_cast<std::size_t>(token)].clear();
  for (std::size_t i = 0; i < texts_.size(); ++i) {
    if (!texts_[i].empty()) tokens_.push_back(static_cast<Token>(i));
  }
  std::stable_sort(tokens_.begin(), tokens_.end(), [&](Token a, Token b) { return text(a) < text(b); });
  std::vector<std::uint32_t> open;  // nodes on the way to the last text
  std::string_view last;
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view now = text(tokens_[i]);
    const auto common =
        static_cast<std::size_t>(std::mismatch(last.begin(), last.end(), now.begin(), now.end()).first - last.begin());
    for (; open.size() > common; open.pop_back()) nodes_[open.back()].skip = static_cast<std::uint32_t>(nodes_.size());
    for (std::size_t depth = common; depth < now.size(); ++depth) {
      open.push_back(static_cast<std::uint32_t>(nodes_.size()));
      nodes_.push_back({static_cast<std::uint8_t>(now[depth]), static_cast<std::uint32_t>(depth), 0, i, 0});
    }
    ++nodes_[open.back()].tokens;
    last = now;
  }
  for (const std::uint32_t node : open) nodes_[node].skip = static_cast<std::uint32_t>(nodes_.size());
}

}  // namespace glimpse::text
