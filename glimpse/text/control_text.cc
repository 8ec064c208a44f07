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

/// Marks the code points of plane 15 that `text` holds, by their low 16 bits.
void mark_private_use(std::string_view text, std::vector<bool>& used) {
  for (std::size_t at = text.find('\xF3'); at != std::string_view::npos; at = text.find('\xF3', at + 1)) {
    if (at + 4 > text.size()) break;
    const auto bits = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]) & 0x3Fu; };
    if (bits(1) >= 0x30) used[(bits(1) & 0xFu) << 12 | bits(2) << 6 | bits(3)] = true;
  }
}

/// `text` with `guard` behind the first character of each of `held`.
std::string guarded(std::string_view text, std::span<const std::string_view> held, std::string_view guard) {
  std::vector<std::size_t> cuts;
  for (const std::string_view control : held) {
    const std::size_t head = utf8_head(control).length;
    if (head >= control.size()) continue;  // one character cannot be cut
    for (std::size_t at = text.find(control); at != std::string_view::npos; at = text.find(control, at + 1)) {
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
  for (const Entry& entry : entries_) texts_.add(entry.text);
  texts_.finish();
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

std::string ControlText::guard_messages(std::vector<ChatMessage>& messages) const {
  std::vector<bool> found(entries_.size());
  for (const ChatMessage& message : messages) {
    texts_.search(message.content, found);
    texts_.search(message.role, found);
  }
  std::vector<std::string_view> held;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (found[i]) held.push_back(entries_[i].text);
  }
  if (held.empty()) return {};

  // Private-use code points of plane 15: a message would have to hold all 65,534 of them.
  std::vector<bool> used(0x10000);
  for (const ChatMessage& message : messages) {
    mark_private_use(message.content, used);
    mark_private_use(message.role, used);
  }
  for (const Entry& entry : entries_) mark_private_use(entry.text, used);
  for (char32_t point = 0xF0000; point < 0xFFFFE; ++point) {
    if (used[point & 0xFFFF]) continue;
    const std::string guard = utf8_of(point);
    for (ChatMessage& message : messages) {
      message.content = guarded(message.content, held, guard);
      message.role = guarded(message.role, held, guard);
    }
    return guard;
  }
  throw UserError("the messages hold control tokens' text beside every private-use character; remove either");
}

void remove_guard(std::string& text, std::string_view guard) {
  if (guard.empty()) return;
  std::string kept;
  std::size_t from = 0;
  for (std::size_t at = text.find(guard); at != std::string::npos; at = text.find(guard, from)) {
    kept.append(text, from, at - from);
    from = at + guard.size();
  }
  if (from > 0) text = kept.append(text, from);
}

}  // namespace glimpse::text
