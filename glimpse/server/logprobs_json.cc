#include "glimpse/server/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "glimpse/text/utf8.h"

namespace glimpse::server {
namespace {

Json bytes_of(std::string_view piece) {
  Json bytes = Json::array();
  for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

/// What a token is written as. One that is no whole UTF-8 has its bytes in words, as OpenAI's API has it: in JSON all
/// such tokens would be the same.
std::string word_of(const text::Tokenizer& tokenizer, text::Token token) {
  std::string piece = tokenizer.piece(token, true);
  if (!text::find_invalid_utf8(piece)) return piece;
  std::string word = "bytes:";
  for (const char c : piece) word += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return word;
}

Json entry_of(const text::Tokenizer& tokenizer, text::Token token, float logprob) {
  return {
      {"token", word_of(tokenizer, token)}, {"logprob", logprob}, {"bytes", bytes_of(tokenizer.piece(token, true))}};
}

/// Characters of UTF-8: bytes that continue none.
std::int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

}  // namespace

Json chat_logprobs(const text::Tokenizer& tokenizer, std::span<const text::TokenLogprobs> tokens) {
  Json content = Json::array();
  for (const text::TokenLogprobs& each : tokens) {
    Json entry = entry_of(tokenizer, each.token, each.logprob);
    entry["top_logprobs"] = Json::array();
    for (const text::TokenLogprob& other : each.top) {
      entry["top_logprobs"].push_back(entry_of(tokenizer, other.token, other.logprob));
    }
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void CompletionLogprobs::place(text::Token token, const text::TokenLogprobs* known) {
  rows_.push_back({token, offset_, known});
  offset_ += characters(tokenizer_.piece(token, true));
}

void CompletionLogprobs::add_prompt(text::Token first, std::span<const text::TokenLogprobs> rest) {
  place(first, nullptr);
  add(rest);
}

void CompletionLogprobs::add(std::span<const text::TokenLogprobs> tokens) {
  for (const text::TokenLogprobs& each : tokens) place(each.token, &each);
}

Json CompletionLogprobs::json() const {
  Json tokens = Json::array(), logprobs = Json::array(), top = Json::array(), offsets = Json::array();
  for (const Row& row : rows_) {
    tokens.push_back(word_of(tokenizer_, row.token));
    offsets.push_back(row.offset);
    logprobs.push_back(row.known == nullptr ? Json() : Json(row.known->logprob));
    // By their texts; of several tokens with one text the likeliest. The token
    // itself is always there.
    Json likeliest = row.known == nullptr ? Json() : Json::object();
    if (row.known != nullptr) {
      for (const text::TokenLogprob& each : row.known->top) {
        likeliest.emplace(word_of(tokenizer_, each.token), each.logprob);
      }
      likeliest.emplace(word_of(tokenizer_, row.token), row.known->logprob);
    }
    top.push_back(std::move(likeliest));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

}  // namespace glimpse::server
