#include "glimpse/text/control_text.h"

#include <llama.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "glimpse/base/error.h"
#include "glimpse/text/utf8.h"

namespace glimpse::text {
namespace {

std::string utf8_of(char32_t point) {
  return {static_cast<char>(0xF0 | (point >> 18)), static_cast<char>(0x80 | ((point >> 12) & 0x3F)),
          static_cast<char>(0x80 | ((point >> 6) & 0x3F)), static_cast<char>(0x80 | (point & 0x3F))};
}

bool is_space(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

}  // namespace

ControlText::ControlText(const llama_vocab* vocab) {
  for (Token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    const auto attributes = static_cast<unsigned>(llama_vocab_get_attr(vocab, token));
    if ((attributes & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) == 0) continue;
    std::string text = llama_vocab_get_text(vocab, token);
    if (text.empty()) continue;
    entries_.push_back({token, std::move(text), (attributes & LLAMA_TOKEN_ATTR_LSTRIP) != 0,
                        (attributes & LLAMA_TOKEN_ATTR_RSTRIP) != 0});
  }
  std::stable_sort(entries_.begin(), entries_.end(),
                   [](const Entry& a, const Entry& b) { return a.text.size() > b.text.size(); });
}

void ControlText::find(std::string_view text, std::size_t begin, std::size_t end, std::vector<Match>& matches) const {
  std::vector<std::pair<std::size_t, std::size_t>> open{{begin, end}}, next;
  for (const Entry& entry : entries_) {
    next.clear();
    for (auto [from, to] : open) {
      for (;;) {
        const std::size_t at = text.substr(0, to).find(entry.text, from);
        if (at == std::string_view::npos) break;
        matches.push_back({at, at + entry.text.size(), &entry});
        if (at > from) next.emplace_back(from, at);
        from = at + entry.text.size();
      }
      if (from < to) next.emplace_back(from, to);
    }
    open.swap(next);
  }
}

std::vector<ControlText::Piece> ControlText::split(std::span<const ChatPart> parts) const {
  std::string text;
  std::vector<Match> matches;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t begin = text.size();
    text += parts[i].text;
    // A control text may be spread over neighbouring template parts, never over a message's text.
    while (!parts[i].from_message && i + 1 < parts.size() && !parts[i + 1].from_message) text += parts[++i].text;
    if (!parts[i].from_message) find(text, begin, text.size(), matches);
  }
  std::sort(matches.begin(), matches.end(), [](const Match& a, const Match& b) { return a.begin < b.begin; });

  std::vector<Piece> pieces;
  const auto add_text = [&](std::size_t from, std::size_t to) {
    if (from < to) pieces.push_back({-1, text.substr(from, to - from)});
  };
  std::size_t at = 0;
  for (std::size_t i = 0; i < matches.size(); ++i) {
    const Match& match = matches[i];
    std::size_t to = match.begin;
    while (match.entry->strips_left && to > at && is_space(text[to - 1])) --to;
    add_text(at, to);
    pieces.push_back({match.entry->token, {}});
    at = match.end;
    const std::size_t limit = i + 1 < matches.size() ? matches[i + 1].begin : text.size();
    while (match.entry->strips_right && at < limit && is_space(text[at])) ++at;
  }
  add_text(at, text.size());
  return pieces;
}

std::string ControlText::guarded(std::string_view text, std::string_view guard) const {
  std::vector<std::size_t> cuts;
  for (const Entry& entry : entries_) {
    const std::size_t head = utf8_head(entry.text).length;
    if (head >= entry.text.size()) continue;  // one character cannot be cut
    for (std::size_t at = text.find(entry.text); at != std::string_view::npos; at = text.find(entry.text, at + 1)) {
      cuts.push_back(at + head);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::string out;
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    out.append(text.substr(from, cut - from)).append(guard);
    from = cut;
  }
  return out.append(text.substr(from));
}

std::string ControlText::guard_messages(std::vector<ChatMessage>& messages) const {
  const auto any_message_has = [&](std::string_view needle) {
    return std::any_of(messages.begin(), messages.end(), [&](const ChatMessage& message) {
      return message.content.find(needle) != std::string::npos || message.role.find(needle) != std::string::npos;
    });
  };
  const auto held = [&](const Entry& entry) { return any_message_has(entry.text); };
  if (std::none_of(entries_.begin(), entries_.end(), held)) return {};

  // Private-use code points of plane 15: a message would have to hold all 65,534 of them.
  for (char32_t point = 0xF0000; point < 0xFFFFE; ++point) {
    const std::string guard = utf8_of(point);
    const auto in_text = [&](const Entry& entry) { return entry.text.find(guard) != std::string::npos; };
    if (any_message_has(guard) || std::any_of(entries_.begin(), entries_.end(), in_text)) continue;
    for (ChatMessage& message : messages) {
      message.content = guarded(message.content, guard);
      message.role = guarded(message.role, guard);
    }
    return guard;
  }
  throw UserError("the messages hold control tokens' text beside every private-use character; remove either");
}

void remove_guard(std::string& text, std::string_view guard) {
  if (guard.empty()) return;
  for (std::size_t at = text.find(guard); at != std::string::npos; at = text.find(guard, at))
    text.erase(at, guard.size());
}

}  // namespace glimpse::text
