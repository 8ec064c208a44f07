// The answer to one HTTP request: the streams of its prompts and choices, and what is written of them, as OpenAI's API
// has it. Waits for nothing: whoever is woken by a stream calls collect(). One thread at a time, but that head(),
// begun(), ended(), failure(), generated() and cancel() may be called while another thread makes events() or whole().
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/engine/service.h"
#include "glimpse/server/api_error.h"
#include "glimpse/server/prepare.h"
#include "glimpse/server/tool_answer.h"
#include "glimpse/server/watch_record.h"

namespace glimpse::server {

struct AnswerHead {
  std::string id, model, policy;
  std::int64_t created = 0;  ///< seconds since 1970
  bool chat = false, include_usage = false, return_progress = false;
  std::int64_t choices = 1;  ///< of each prompt
  std::vector<std::string> ignored;
  bool logprobs = false;
  const text::Tokenizer* tokenizer = nullptr;        ///< outlives the answer
  std::vector<EchoedPrompt> echoed;                  ///< [prompts], or none
  std::shared_ptr<WatchRecord> watch;                ///< or none; it ends with the answer
  std::shared_ptr<const text::AnswerParser> parser;  ///< of a chat whose answers may call tools, or none
};

/// How far a prompt is: tokens of it, of these done, and of those the first ones, which were kept from before.
struct PromptProgress {
  std::int64_t total = 0, processed = 0, cache = 0;
  double milliseconds = 0;  ///< since its first pass began
};

struct ChunkText;
struct TextFrame;

class Answer {
 public:
  Answer(AnswerHead head, std::vector<engine::Stream> streams);
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  /// Takes all events that are there. False: there are none.
  bool collect();
  /// A prompt has been begun, or all is over.
  bool begun() const;
  bool ended() const;
  /// What went wrong, once something has; the other choices are cancelled then.
  const std::optional<ApiError>& failure() const { return failure_; }
  /// Ends all that runs, as soon as the engine can.
  void cancel();

  /// True where making events() or whole() reads the text anew, which takes the longer the more there is.
  bool reads_text() const { return head_.parser != nullptr; }
  /// Server-sent events of what was collected since the last call; the last ones have the usage and "[DONE]". Either
  /// this or whole() is called.
  std::string events();
  /// The answer as one JSON object, when it has ended.
  std::string whole();

  const AnswerHead& head() const { return head_; }
  engine::TimePoint submitted() const { return submitted_; }
  std::int64_t generated() const;
  /// Results of what has ended since the last call, for the metrics.
  std::vector<engine::Result> take_finished();

 private:
  struct Choice {
    explicit Choice(engine::Stream from) : stream(std::move(from)) {}
    engine::Stream stream;
    std::string text;                                  ///< all of it or, in a stream, since the last events()
    std::vector<text::TokenLogprobs> logprobs;         ///< the same
    std::vector<text::TokenLogprobs> prompt_logprobs;  ///< in a stream: of the echoed prompt, until it is told
    std::int64_t tokens = 0;
    std::int64_t offset = 0;  ///< characters that logprobs were told of
    std::optional<ToolAnswer> tools;
    std::shared_ptr<const TextFrame> frame;  ///< made with the first text
    engine::TimePoint started;
    std::optional<PromptProgress> progress;  ///< that was not told
    bool begun = false, told_role = false, told_echo = false, ended = false, told_end = false, counted = false;
    engine::Result result;
  };
  void take(Choice& choice, engine::StreamEvent event);
  /// Adds the event of a text, with the log-probabilities that came to the choice.
  static void add_text(std::string& out, Choice& choice, const ChunkText& chunk, std::string_view text);
  /// The event of the prompt that stands before a choice's text, once its logprobs are known where they are wanted.
  std::string echo_event(Choice& choice, const ChunkText& chunk);
  /// Events of the content and calls that came to a choice.
  std::string tool_events(Choice& choice, const ChunkText& chunk);
  /// The prompt that stands before a choice's text; null: none does.
  const EchoedPrompt* echoed_of(std::size_t choice) const;

  AnswerHead head_;
  const engine::TimePoint submitted_ = std::chrono::steady_clock::now();
  std::vector<Choice> choices_;
  std::optional<ApiError> failure_;
  bool told_all_ = false;
};

}  // namespace glimpse::server
