#include "glimpse/server/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/server/api_error.h"

namespace glimpse::server {
namespace {

constexpr std::int64_t kUsualCompletion = 16;  ///< tokens, as OpenAI's
constexpr std::int64_t kUsualAnswer = 256;     ///< tokens that `auto` counts on where none are named

void check_model(const Wanted& wanted, const Backend& backend) {
  if (wanted.model.empty() || wanted.model == backend.name) return;
  throw ApiError(404, fmt::format("there is no model '{}'; this server has '{}'", excerpt(wanted.model), backend.name))
      .about("model")
      .coded("model_not_found");
}

std::vector<text::Token> tokens_of(const Prompt& prompt, const text::Tokenizer& tokenizer) {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return tokenizer.encode(*text, text::Special::as_tokens, true);
  }
  const auto& ids = std::get<std::vector<text::Token>>(prompt);
  for (const text::Token id : ids) {
    if (id < tokenizer.size()) continue;
    throw bad_field("prompt", fmt::format("has the token {}, and the model has {}", id, tokenizer.size()));
  }
  return ids;
}

std::vector<std::vector<text::Token>> prompts_of(const Wanted& wanted, bool chat, const Backend& backend) {
  const text::Tokenizer& tokenizer = backend.tokenizer();
  std::vector<std::vector<text::Token>> prompts;
  if (chat) {
    if (wanted.messages.empty()) throw ApiError(400, "'messages' is missing").about("messages");
    if (!tokenizer.has_chat_template()) {
      throw ApiError(400, "the model has no chat template; use /v1/completions").about("messages");
    }
    prompts.push_back(tokenizer.apply_chat(wanted.messages, true));
  } else {
    if (wanted.prompts.empty()) throw ApiError(400, "'prompt' is missing").about("prompt");
    for (const Prompt& prompt : wanted.prompts) prompts.push_back(tokens_of(prompt, tokenizer));
  }
  const std::string_view field = chat ? "messages" : "prompt";
  for (const auto& tokens : prompts) {
    if (tokens.empty()) throw bad_field(field, "has no token; give some text");
    if (std::ssize(tokens) < backend.engine.context()) continue;
    throw bad_field(field,
                    fmt::format("has {} tokens, and the context holds {}, one of them for the answer; shorten it",
                                tokens.size(), backend.engine.context()))
        .coded("context_length_exceeded");
  }
  return prompts;
}

/// Fields that only a sparse method heeds are refused beside one that reads everything.
void check_idle(const Wanted& wanted, const plan::Plan& plan) {
  if (!reads_everything(plan)) return;
  for (const auto& [name, given] :
       {std::pair("attention.lossless", wanted.lossless.has_value()),
        std::pair("attention.correct", wanted.correct > 0), std::pair("attention.audit", wanted.audit > 0)}) {
    if (given) throw bad_field(name, "has no effect on a method that reads everything; name another, or leave it out");
  }
}

plan::Plan plan_of(const Wanted& wanted, const Backend& backend, std::int64_t prompt_tokens) {
  const MethodWish wish = backend.methods.resolved(wanted.method, wanted.names_method);
  const std::int64_t tokens = prompt_tokens + wanted.max_tokens.value_or(kUsualAnswer);
  try {
    plan::Plan plan =
        backend.methods.plan_for(wish, std::min(tokens, backend.engine.context()), wanted.lossless.has_value());
    if (wish.policy != "auto") check_idle(wanted, plan);
    return plan;
  } catch (const UserError& error) {
    throw ApiError(400, fmt::format("'attention': {}", error.what())).about("attention");
  }
}

}  // namespace

Prepared prepare(std::string_view body, FieldPlace place, const Backend& backend, const Limits& limits) {
  Wanted wanted = read_fields(body, place, limits);
  check_model(wanted, backend);
  const bool chat = place == kInChat;
  if (!chat && !wanted.max_tokens) wanted.max_tokens = kUsualCompletion;
  if (wanted.include_usage && !wanted.stream) {
    throw bad_field("stream_options.include_usage", "is for a stream; give 'stream': true, or leave it out");
  }
  text::validate(wanted.sampling);
  const std::uint32_t seed = wanted.seed ? *wanted.seed : std::random_device{}();

  Prepared out{chat, wanted.stream, wanted.include_usage, std::move(wanted.ignored), {}, wanted.choices, {}};
  for (std::vector<text::Token>& prompt : prompts_of(wanted, chat, backend)) {
    engine::Request request;
    request.plan = plan_of(wanted, backend, std::ssize(prompt));
    request.sampling = wanted.sampling;
    request.max_tokens = wanted.max_tokens.value_or(-1);
    request.stop = wanted.stop;
    if (!reads_everything(request.plan)) {
      request.correct_every = wanted.correct;
      request.audit_every = wanted.audit;
      request.lossless = wanted.lossless.has_value();
      request.draft_tokens = wanted.lossless.value_or(0);
    }
    request.prompt = std::move(prompt);
    if (out.policy.empty()) out.policy = request.plan.policy;
    for (std::int64_t i = 0; i < wanted.choices; ++i) {
      out.requests.push_back(request);
      out.requests.back().sampling.seed = seed + static_cast<std::uint32_t>(i);
    }
  }
  return out;
}

}  // namespace glimpse::server
