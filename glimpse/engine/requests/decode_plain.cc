#include "glimpse/engine/requests/decode_plain.h"

#include <algorithm>
#include <array>

#include "glimpse/engine/requests/finish.h"

namespace glimpse::engine {

std::string answer_piece(const text::Tokenizer& tokenizer, const Request& request, Token token) {
  const bool shown = std::find(request.shown.begin(), request.shown.end(), token) != request.shown.end();
  return tokenizer.piece(token, shown);
}

void take_logits(Runtime& runtime, ActiveRequest& request, std::span<const float> logits) {
  if (request.request.max_tokens == 0) return end_answer(runtime, request, FinishReason::length);
  // A grammar of the empty text alone.
  if (request.sampler.must_end()) return end_answer(runtime, request, FinishReason::stop);
  take_token(runtime, request, {request.sampler.sample(logits), request.sequence->length, logits});
}

void take_leaders(Runtime& runtime, ActiveRequest& request, std::span<const exec::Leader> leaders) {
  std::array<text::TokenLogit, exec::kMostLeaders> largest;
  check(leaders.size() <= largest.size(), "as many leaders as were asked for");
  for (std::size_t i = 0; i < leaders.size(); ++i) largest[i] = {leaders[i].token, leaders[i].logit};
  const Token token = request.sampler.sample_largest(std::span(largest).first(leaders.size()));
  take_token(runtime, request, {token, request.sequence->length, {}});
}

void take_token(Runtime& runtime, ActiveRequest& request, const Said& said) {
  const text::Tokenizer& tokenizer = runtime.loaded.tokenizer;
  const Token token = said.token;
  const auto note_logprobs = [&] {
    const std::optional<int>& top = request.request.logprobs;
    if (top) request.result.logprobs.push_back(text::logprobs_of(said.logits, token, *top));
  };
  request.sampler.accept(token);
  if (tokenizer.ends_generation(token) && !request.request.ignore_end) {
    note_logprobs();
    return end_answer(runtime, request, FinishReason::end_of_text);
  }
  RequestStats& stats = request.result.stats;
  const bool stopped = request.text.add(token, answer_piece(tokenizer, request.request, token));
  if (!stopped) {
    note_logprobs();
    request.result.tokens.push_back(token);
    stats.generated_tokens = static_cast<std::int64_t>(request.result.tokens.size());
    stats.last_token_s = seconds_since(request.submitted);
    if (stats.first_token_s < 0) stats.first_token_s = stats.last_token_s;
  }
  hand_out(request);
  if (request.phase == Phase::done) return;  // cancelled from the callback
  if (stopped) return finish(runtime, request, FinishReason::stop);
  if (request.sampler.must_end()) return end_answer(runtime, request, FinishReason::stop);
  request.next = token;
  if (request.request.max_tokens > 0 && stats.generated_tokens >= request.request.max_tokens) {
    return end_answer(runtime, request, FinishReason::length);
  }
  const std::int64_t context = runtime.options.context;
  const bool forgets = plan::forgets(request.request.plan);
  const std::int64_t most = forgets ? context : std::min(context, runtime.cache().shape().capacity_tokens);
  if (said.length >= most) end_answer(runtime, request, FinishReason::context_full);
}

}  // namespace glimpse::engine
