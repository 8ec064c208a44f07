#include "glimpse/text/sentence_cuts.h"

#include <fmt/format.h>
#include <llama.h>

#include "glimpse/base/error.h"
#include "glimpse/text/utf8.h"

namespace glimpse::text {
namespace {

constexpr std::size_t kPart = 1024;
/// Characters without a token times bytes of the part: libllama copies four bytes for each.
constexpr std::size_t kMostCopies = std::size_t{1} << 29;
constexpr std::size_t kCodePoints = 0x110000;

/// The code point of a whole UTF-8 sequence; SentencePiece spells a space U+2581.
std::size_t code_point(std::string_view sequence) {
  const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(static_cast<unsigned char>(sequence[i])); };
  if (sequence == " ") return 0x2581;
  switch (sequence.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
  }
}

}  // namespace

SentenceCuts::SentenceCuts(const llama_vocab* vocab) : held_(kCodePoints), alone_(kCodePoints) {
  for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); ++token) {
    const std::string_view text = llama_vocab_get_text(vocab, token);
    if (text.empty() || find_invalid_utf8(text)) continue;  // no valid text has it
    const std::size_t head = utf8_head(text).length;
    if (head == text.size()) {
      alone_[code_point(text)] = true;
      continue;
    }
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t length = utf8_head(text.substr(at)).length;
      held_[code_point(text.substr(at, length))] = true;
      at += length;
    }
  }
}

std::size_t SentenceCuts::first(std::string_view text) const {
  std::size_t without_token = 0;
  bool held_before = true;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_head(text.substr(at)).length;
    const std::size_t point = code_point(text.substr(at, length));
    if (at >= kPart && !(held_before && held_[point])) return at;
    held_before = held_[point];
    if (!alone_[point] && ++without_token * at > kMostCopies) {
      throw UserError(
          fmt::format("the text has {} characters that the model's vocabulary has no token for in {} bytes "
                      "that cannot be cut; at most {} as their product can be tokenised; shorten it",
                      without_token, at, kMostCopies));
    }
    at += length;
  }
  return text.size();
}

}  // namespace glimpse::text
