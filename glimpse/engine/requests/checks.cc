#include "glimpse/engine/requests/checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "glimpse/base/error.h"
#include "glimpse/engine/correction.h"
#include "glimpse/engine/lossless.h"

namespace glimpse::engine {
namespace {

void check_lossless(Request& request) {
  if (request.audit_every > 0) {
    throw UserError("a lossless answer is verified whole; leave --attn-audit out");
  }
  require_whole_cache(request.plan, "a dense pass cannot verify what they draft", "--lossless");
  if (request.draft_tokens < 0 || request.draft_tokens > kMostDrafts) {
    throw UserError(fmt::format("lossless decoding with {} drafts at a time: give 1 to {}, or 0 for as many as pay",
                                request.draft_tokens, kMostDrafts));
  }
  if (request.correct_every > 0) {
    throw UserError("lossless decoding corrects the cache at every verification; leave --correct out");
  }
  // A sparse prefill would leave other keys and values behind than dense attention.
  request.plan.prefill.sparse = false;
  request.plan.prefill.tile_rows = 0;
}

/// How its tokens are drawn, and when it ends.
void check_answer(const LoadedModel& loaded, const Request& request) {
  text::validate(request.sampling);
  for (const text::TokenBias& bias : request.sampling.logit_bias) {
    if (bias.token < loaded.tokenizer.size()) continue;
    throw UserError(fmt::format("a logit bias of token {}, and the vocabulary has {}; give an id from 0 to {}",
                                bias.token, loaded.tokenizer.size(), loaded.tokenizer.size() - 1));
  }
  for (const std::optional<int>& wanted : {request.logprobs, request.prompt_logprobs}) {
    if (!wanted || (*wanted >= 0 && *wanted <= text::kMostLogprobs)) continue;
    throw UserError(
        fmt::format("log-probabilities of the {} likeliest tokens; give 0 to {}", *wanted, text::kMostLogprobs));
  }
  if (request.min_tokens < 0) {
    throw UserError(
        fmt::format("at least {} tokens of an answer: give 1 or more, or 0 for no least number", request.min_tokens));
  }
  if (request.max_tokens >= 0 && request.min_tokens > request.max_tokens) {
    throw UserError(fmt::format("an answer of at least {} tokens and at most {}; ask for fewer or allow more",
                                request.min_tokens, request.max_tokens));
  }
  if (std::any_of(request.stop.begin(), request.stop.end(), [](const std::string& stop) { return stop.empty(); })) {
    throw UserError("a stop string is empty: give it some text, or leave it out");
  }
}

}  // namespace

void check_request(Runtime& runtime, Request& request, std::int64_t forgotten) {
  runtime.require(request.plan);
  check_answer(runtime.loaded, request);
  if (request.correct_every < 0) {
    throw UserError(
        fmt::format("cache correction every {} tokens: give 1 or more, or 0 for none", request.correct_every));
  }
  if (request.correct_every > 0) require_correction(request.plan);
  if (request.audit_every < 0) {
    throw UserError(fmt::format("an audit every {} tokens: give 1 or more, or 0 for none", request.audit_every));
  }
  if (request.lossless) check_lossless(request);
  const auto length = static_cast<std::int64_t>(request.prompt.size());
  if (length == 0) throw UserError("the prompt is empty: give at least one token of text");
  const std::int64_t context = runtime.options.context;
  if (length >= context) {
    throw UserError(
        fmt::format("the prompt has {} tokens and the context holds {}, one of them for the answer; "
                    "shorten the prompt or raise -c (the model was made for {})",
                    length, context, runtime.loaded.model.config().context));
  }
  // A saved session may hold less than its tokens, too.
  if (!request.session || !plan::forgets(request.plan)) require_memory(runtime.device, length - forgotten);
  require_tokens(runtime.loaded, request.prompt);
}

}  // namespace glimpse::engine
