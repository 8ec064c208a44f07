#include "glimpse/text/added_tokens.h"

#include <llama.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace glimpse::text {
namespace {

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

AddedTokens::AddedTokens(const llama_vocab* vocab) {
  constexpr unsigned kControl = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN;
  for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    const auto attributes = static_cast<unsigned>(llama_vocab_get_attr(vocab, token));
    if ((attributes & (kControl | LLAMA_TOKEN_ATTR_USER_DEFINED)) == 0) continue;
    entries_.push_back({token, llama_vocab_get_text(vocab, token), (attributes & kControl) != 0,
                        (attributes & LLAMA_TOKEN_ATTR_LSTRIP) != 0, (attributes & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
  }
  // std::sort as in libllama, so that texts of one length have its order.
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.text.size() > b.text.size(); });
  for (const Entry& entry : entries_) texts_.add(entry.text);
  texts_.finish();
}

std::vector<AddedTokens::Piece> AddedTokens::split(std::string_view text, Special special) const {
  std::vector<bool> found(entries_.size());
  texts_.search(text, found);
  std::vector<Piece> tokens, open{{0, text.size()}}, next;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (!found[i] || (entry.is_control && special == Special::as_text)) continue;
    next.clear();
    for (auto [from, to, none] : open) {
      for (;;) {
        const std::size_t at = text.substr(0, to).find(entry.text, from);
        if (at == std::string_view::npos) break;
        std::size_t left = at;
        while (entry.strips_left && left > from && is_space(text[left - 1])) --left;
        if (left > from) next.push_back({from, left});
        from = at + entry.text.size();
        tokens.push_back({at, from, entry.token});
        while (entry.strips_right && from < to && is_space(text[from])) ++from;
      }
      if (from < to) next.push_back({from, to});
    }
    open.swap(next);
  }
  tokens.insert(tokens.end(), open.begin(), open.end());
  std::sort(tokens.begin(), tokens.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return tokens;
}

bool AddedTokens::begins(std::string_view text) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return !entry.is_control && text.starts_with(entry.text); });
}

}  // namespace glimpse::text
