#include "glimpse/server/answer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "glimpse/server/json.h"
#include "glimpse/server/logprobs_json.h"

namespace glimpse::server {
namespace {

Json head_json(const AnswerHead& head, std::string_view object) {
  Json json{{"id", head.id}, {"object", object}, {"created", head.created}, {"model", head.model}};
  return json;
}

Json usage_json(const AnswerSums& sums) {
  return {{"prompt_tokens", sums.prompt_tokens},
          {"completion_tokens", sums.completion_tokens},
          {"total_tokens", sums.prompt_tokens + sums.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", sums.cached_tokens}}}};
}

Json glimpse_json(const AnswerHead& head, const AnswerSums& sums) {
  const engine::AttentionStats& attention = sums.attention;
  const auto& mass = attention.audits > 0 ? attention.audited : attention.coverage;
  const bool known = mass.sets > 0;
  return {{"policy", head.policy},
          {"kept_ratio", attention.kept_ratio()},
          {"coverage_mean", known ? Json(mass.mean) : Json()},
          {"coverage_min", known ? Json(mass.least) : Json()},
          {"kv_bytes_read", attention.bytes_read},
          {"reused", sums.cached_tokens}};
}

Json chunk_json(const AnswerHead& head, Json choices) {
  Json json = head_json(head, head.chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = std::move(choices);
  if (head.include_usage) json["usage"] = nullptr;
  return json;
}

Json choice_json(const ChunkText& chunk, std::string_view text) {
  Json choice{{"index", chunk.index}};
  if (chunk.head.chat) {
    choice["delta"] = text.empty() ? Json::object() : Json{{"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return choice;
}

Json message_json(const WholeChoice& from) {
  if (from.parsed == nullptr) return {{"role", "assistant"}, {"content", from.text}};
  const auto& [content, calls] = *from.parsed;
  Json message{{"role", "assistant"}, {"content", content.empty() && !calls.empty() ? Json() : Json(content)}};
  if (calls.empty()) return message;
  Json list = Json::array();
  for (const text::ToolCall& call : calls) {
    list.push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  message["tool_calls"] = std::move(list);
  return message;
}

Json logprobs_of(const AnswerHead& head, const WholeChoice& choice) {
  const engine::Result& result = *choice.result;
  // The token that ended the text is no part of a message; a completion counts it.
  if (head.chat) {
    const std::size_t count = std::min(result.tokens.size(), result.logprobs.size());
    return chat_logprobs(*head.tokenizer, std::span(result.logprobs).first(count));
  }
  CompletionLogprobs made(*head.tokenizer, 0);
  if (choice.echoed != nullptr) made.add_prompt(choice.echoed->tokens.front(), result.prompt_logprobs);
  made.add(result.logprobs);
  return made.json();
}

}  // namespace

void AnswerSums::add(const engine::Result& result, std::int64_t choices_of_a_prompt) {
  if (seen_++ % choices_of_a_prompt == 0) {
    prompt_tokens += result.stats.prompt_tokens;
    cached_tokens += result.stats.reused_tokens;
  }
  completion_tokens += result.stats.generated_tokens;
  attention += result.stats.attention;
}

std::string_view finish_word(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::end_of_text:
    case engine::FinishReason::stop:
      return "stop";
    case engine::FinishReason::length:
    case engine::FinishReason::context_full:
      return "length";
    case engine::FinishReason::cancelled:
      return "cancelled";
    case engine::FinishReason::failed:
    case engine::FinishReason::none:
      break;
  }
  return "error";
}

std::string_view finish_word(engine::FinishReason reason, bool calls) {
  const std::string_view word = finish_word(reason);
  return calls && word == "stop" ? "tool_calls" : word;
}

std::string ChunkText::role() const {
  Json choice = choice_json(*this, {});
  if (head.chat) choice["delta"] = {{"role", "assistant"}, {"content", ""}};
  Json json = chunk_json(head, Json::array({std::move(choice)}));
  if (!head.ignored.empty()) json["ignored"] = head.ignored;
  return text_of(json);
}

std::string ChunkText::progress(const PromptProgress& progress) const {
  Json json = chunk_json(head, Json::array({choice_json(*this, {})}));
  json["prompt_progress"] = {{"total", progress.total},
                             {"cache", progress.cache},
                             {"processed", progress.processed},
                             {"time_ms", std::llround(progress.milliseconds)}};
  return text_of(json);
}

std::string ChunkText::text(std::string_view text, std::span<const text::TokenLogprobs> logprobs,
                            std::int64_t& offset) const {
  Json choice = choice_json(*this, text);
  if (!logprobs.empty() && head.chat) choice["logprobs"] = chat_logprobs(*head.tokenizer, logprobs);
  if (!logprobs.empty() && !head.chat) {
    CompletionLogprobs made(*head.tokenizer, offset);
    made.add(logprobs);
    choice["logprobs"] = made.json();
    offset = made.offset();
  }
  return text_of(chunk_json(head, Json::array({std::move(choice)})));
}

TextFrame ChunkText::frame() const {
  constexpr std::string_view kText = "\"?\"";
  std::string event = event_text(text_of(chunk_json(head, Json::array({choice_json(*this, "?")}))));
  const std::size_t at = event.rfind(kText);  // no text of the client comes after it
  return {event.substr(0, at), event.substr(at + kText.size())};
}

void TextFrame::add_event(std::string& out, std::string_view text) const {
  out += before;
  add_quoted(out, text);
  out += after;
}

std::string ChunkText::echo(const EchoedPrompt& echoed, std::span<const text::TokenLogprobs> logprobs,
                            std::int64_t& offset) const {
  Json choice = choice_json(*this, echoed.text);
  if (head.logprobs) {
    CompletionLogprobs made(*head.tokenizer, offset);
    made.add_prompt(echoed.tokens.front(), logprobs);
    choice["logprobs"] = made.json();
    offset = made.offset();
  }
  return text_of(chunk_json(head, Json::array({std::move(choice)})));
}

std::string ChunkText::call(const ToolDelta& delta) const {
  Json call{{"index", delta.call}};
  if (delta.begins) {
    call["id"] = delta.id;
    call["type"] = "function";
    call["function"] = {{"name", delta.name}, {"arguments", delta.arguments}};
  } else {
    call["function"] = {{"arguments", delta.arguments}};
  }
  Json choice = choice_json(*this, {});
  choice["delta"] = {{"tool_calls", Json::array({std::move(call)})}};
  return text_of(chunk_json(head, Json::array({std::move(choice)})));
}

std::string ChunkText::end(std::string_view reason, const AnswerSums* sums) const {
  Json choice = choice_json(*this, {});
  choice["finish_reason"] = reason;
  Json json = chunk_json(head, Json::array({std::move(choice)}));
  if (sums != nullptr) json["glimpse"] = glimpse_json(head, *sums);
  return text_of(json);
}

std::string ChunkText::usage(const AnswerSums& sums) const {
  Json json = chunk_json(head, Json::array());
  json["usage"] = usage_json(sums);
  json["glimpse"] = glimpse_json(head, sums);
  return text_of(json);
}

std::string whole_json(const AnswerHead& head, std::span<const WholeChoice> choices, const AnswerSums& sums) {
  Json json = head_json(head, head.chat ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    Json choice{{"index", i}};
    const WholeChoice& from = choices[i];
    if (head.chat) {
      choice["message"] = message_json(from);
    } else {
      choice["text"] = (from.echoed != nullptr ? from.echoed->text : std::string()) + std::string(from.text);
    }
    choice["logprobs"] = head.logprobs ? logprobs_of(head, from) : Json();
    choice["finish_reason"] = finish_word(from.result->reason, from.parsed != nullptr && !from.parsed->calls.empty());
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = usage_json(sums);
  json["glimpse"] = glimpse_json(head, sums);
  if (!head.ignored.empty()) json["ignored"] = head.ignored;
  return text_of(json);
}

std::string event_text(std::string_view json) {
  return fmt::format("data: {}\n\n", json);
}

}  // namespace glimpse::server
