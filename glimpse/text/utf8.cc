#include "glimpse/text/utf8.h"

#include <string>

#include "glimpse/text/tokenizer.h"

namespace glimpse::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// A lead byte's sequence length and the range of its second byte; length 0: no lead byte.
struct Lead {
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // above are the surrogates
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

Utf8Head utf8_head(std::string_view bytes) {
  const Lead lead = lead_of(static_cast<unsigned char>(bytes.front()));
  if (lead.length == 0) return {Utf8Kind::invalid, 1};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Utf8Kind::partial, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const bool fits = i == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xC0) == 0x80;
    if (!fits) return {Utf8Kind::invalid, i};
  }
  return {Utf8Kind::complete, lead.length};
}

std::optional<std::size_t> find_invalid_utf8(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const Utf8Head head = utf8_head(bytes.substr(at));
    if (head.kind != Utf8Kind::complete) return at;
    at += head.length;
  }
  return std::nullopt;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_.append(bytes);
  std::string out;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Head head = utf8_head(std::string_view(pending_).substr(at));
    if (head.kind == Utf8Kind::partial) break;
    if (head.kind == Utf8Kind::complete) {
      out.append(pending_, at, head.length);
    } else {
      out.append(kReplacement);
    }
    at += head.length;
  }
  pending_.erase(0, at);
  return out;
}

std::string Utf8Stream::finish() {
  // What push left is the head of one sequence at most.
  std::string out(pending_.empty() ? std::string_view() : kReplacement);
  pending_.clear();
  return out;
}

}  // namespace glimpse::text
