// Answers in OpenAI's words. Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "glimpse/engine/request.h"
#include "glimpse/server/answer.h"

namespace glimpse::server {

/// Of all choices together.
struct AnswerSums {
  std::int64_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  engine::AttentionStats attention;
  /// Choices come prompt by prompt, and a prompt counts once.
  void add(const engine::Result& result, std::int64_t choices_of_a_prompt);

 private:
  std::int64_t seen_ = 0;
};

/// The event of a text without log-probabilities, as two parts around the text. They are the same for all tokens of a
/// choice, so they are made once: the engine computes on the same cores.
struct TextFrame {
  std::string before, after;
  /// Adds the whole event, as event_text() of ChunkText::text().
  void add_event(std::string& out, std::string_view text) const;
};

/// Events of one choice, as JSON.
struct ChunkText {
  const AnswerHead& head;
  std::int64_t index = 0;

  std::string role() const;
  /// No text: `prompt_progress`, as llama.cpp's server has it.
  std::string progress(const PromptProgress& progress) const;
  /// `logprobs`: of the tokens that came with the text. `offset`, characters before them, is moved behind them.
  std::string text(std::string_view text, std::span<const text::TokenLogprobs> logprobs, std::int64_t& offset) const;
  TextFrame frame() const;
  /// The prompt. `logprobs`: of its tokens from the second on, told where the head wants any; `offset` as above.
  std::string echo(const EchoedPrompt& echoed, std::span<const text::TokenLogprobs> logprobs,
                   std::int64_t& offset) const;
  std::string call(const ToolDelta& delta) const;
  /// With `sums`: of the last choice, where no usage follows.
  std::string end(std::string_view reason, const AnswerSums* sums) const;
  std::string usage(const AnswerSums& sums) const;
};

struct WholeChoice {
  std::string_view text;
  const engine::Result* result = nullptr;
  const EchoedPrompt* echoed = nullptr;
  const text::ParsedAnswer* parsed = nullptr;  ///< of a chat with tools: in place of the text
};
std::string whole_json(const AnswerHead& head, std::span<const WholeChoice> choices, const AnswerSums& sums);

/// "data: ...", with the empty line behind it.
std::string event_text(std::string_view json);
/// stop, length, cancelled; error of one that failed, which an answer tells as an error and never as a reason.
std::string_view finish_word(engine::FinishReason reason);
/// The same of an answer that calls tools: tool_calls where it ended by itself.
std::string_view finish_word(engine::FinishReason reason, bool calls);

}  // namespace glimpse::server
