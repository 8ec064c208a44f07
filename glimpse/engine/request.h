// What is asked of an Engine, and what comes of it. Values; engine.h says on which thread callbacks run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "glimpse/engine/attention_stats.h"
#include "glimpse/engine/session/use.h"
#include "glimpse/plan/plan.h"
#include "glimpse/text/grammar.h"
#include "glimpse/text/logprobs.h"
#include "glimpse/text/sampling_options.h"
#include "glimpse/text/tokenizer.h"

namespace glimpse::engine {

using text::Token;

/// stop: the answer came to one of Request::stop, or to the end of its grammar.
enum class FinishReason : std::uint8_t { none, end_of_text, length, context_full, cancelled, failed, stop };
std::string_view name(FinishReason reason);

/// Which rows of K and V that other requests left behind serve a prompt (EngineOptions::prefix_bytes). Each level takes
/// what those before it take.
enum class Reuse : std::uint8_t {
  exact,  ///< those that have the very bits of a prefill by the request alone: its answer is the same from them
  dense,  ///< those that were made reading everything: prefilled in whatever chunks, decoded, verified or corrected
  any,    ///< those that were made sparsely, too
  none,   ///< none; and the request leaves nothing behind
};
std::string_view name(Reuse reuse);

/// Lossless decoding, in tokens and passes.
struct LosslessStats {
  std::int64_t drafted = 0, accepted = 0;
  std::int64_t verify_passes = 0;
  std::int64_t dense_steps = 0;      ///< where drafting did not pay
  double draft_s = 0, verify_s = 0;  ///< parts of decode_s
};

struct RequestStats {
  std::int64_t prompt_tokens = 0, generated_tokens = 0;
  /// Of the prompt: from a session, a kept prefix or the sequence that the request went on from; and computed, in
  /// prefill_s. Fewer than all together: the prefill was not completed.
  std::int64_t reused_tokens = 0, prefilled_tokens = 0;
  /// Of the prompt: looked for among kept prefixes, and found there.
  std::int64_t prefix_queried = 0, prefix_found = 0;
  double prefill_s = 0, decode_s = 0;
  double correction_s = 0;  ///< beside decode_s
  std::int64_t corrections = 0;
  /// Wall time since submit() of the first chunk (or what a session gave), and of the first and the last token; -1: not
  /// yet. Seconds.
  double first_chunk_s = -1, first_token_s = -1, last_token_s = -1;
  double waited_s = 0;  ///< before it began and while it was preempted
  std::int64_t preemptions = 0;
  LosslessStats lossless;
  AttentionStats attention;
  std::optional<SessionUse> session;  ///< of a request that names one
};

struct Request {
  std::vector<Token> prompt;
  plan::Plan plan;
  text::SamplingOptions sampling;
  std::int64_t max_tokens = -1;    ///< -1: until the model ends or the context is full
  std::int64_t min_tokens = 0;     ///< before so many no end-of-text token is taken, and no stop string may begin
  bool ignore_end = false;         ///< go on after an end-of-text token, which is one of the answer then
  std::int64_t correct_every = 0;  ///< cache correction of the last so many decoded tokens, each time; 0: never
  std::int64_t audit_every = 0;  ///< every so many decoded tokens the true coverage of every head is measured; 0: never
  bool lossless = false;         ///< the answer is dense attention's: the prompt is prefilled densely, the plan
                                 ///< drafts, a dense pass verifies
  int draft_tokens = 0;          ///< lossless: so many each time, at most kMostDrafts; 0: as many as should pay
  /// Result::logprobs and prompt_logprobs are wanted, with so many of the likeliest tokens, 0 to text::kMostLogprobs.
  /// The model's own: its logits before any bias, penalty, temperature or filter. The whole prompt is prefilled for
  /// prompt_logprobs: nothing of a session or sequence is used.
  std::optional<int> logprobs, prompt_logprobs;
  bool keep = false;  ///< when it has ended, Engine::take() hands its sequence over
  /// Of what others left behind, where the engine keeps prefixes. Nothing is used by a request with a session or
  /// prompt_logprobs.
  Reuse reuse = Reuse::dense;
  std::string cache_salt;  ///< only requests of the same salt use what each other left behind
  /// A saved session: what it has of the prompt is not prefilled again; made or replaced after the prefill where it is
  /// missing or the prompt has grown (docs/sessions.md), and after a part of it where the request is cancelled
  /// there. A file that is refused, or in a folder that cannot be written to, is left as it is.
  std::optional<std::filesystem::path> session;
  /// The answer ends where its text comes to one of these, none of them empty. Result::tokens then ends before the
  /// token that completes it, and no byte of the stop string or behind it is handed out: tokens and text are held back
  /// while they may be its beginning. When anything else ends the answer, cancelling too, what is held back is handed
  /// out first; a request that fails keeps it.
  std::vector<std::string> stop;
  /// What the answer must look like; it ends where the grammar allows nothing more, min_tokens or not.
  text::GrammarWish grammar;
  std::vector<Token> shown;  ///< control tokens whose texts belong to the answer's, which else has none of them
  /// Each of Result::tokens with its bytes, without those of a stop string.
  std::function<void(Token token, std::string_view bytes)> on_token;
  /// The answer's text in whole UTF-8 sequences (bytes that are none come as U+FFFD), all that comes before a stop
  /// string. After on_token of the same token.
  std::function<void(std::string_view text)> on_text;
  /// After each chunk. A request that had to give its pages back and could not keep them begins again.
  std::function<void(std::int64_t done, std::int64_t total)> on_prefill;
  std::function<void(const SetTrace&)> on_sets;
};

struct Result {
  std::vector<Token> tokens;
  /// [tokens] where asked for, and behind them that of the token which ended the text (end_of_text).
  std::vector<text::TokenLogprobs> logprobs;
  /// [prompt_tokens - 1] where asked for: of each token given those before it, from the second on. Fewer before the
  /// prefill is completed.
  std::vector<text::TokenLogprobs> prompt_logprobs;
  FinishReason reason = FinishReason::none;
  std::string error;      ///< failed: what ended it
  bool at_fault = false;  ///< failed: by what the request asks for
  RequestStats stats;
};

using RequestId = std::int64_t;

}  // namespace glimpse::engine
