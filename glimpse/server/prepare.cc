#include "glimpse/server/prepare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "glimpse/base/error.h"
#include "glimpse/plan/budget_text.h"
#include "glimpse/server/api_error.h"
#include "glimpse/server/schema_fields.h"
#include "glimpse/text/json_grammar.h"

namespace glimpse::server {
namespace {

constexpr std::int64_t kUsualCompletion = 16;  ///< tokens, as OpenAI's
constexpr std::int64_t kUsualAnswer = 256;     ///< tokens that `auto` counts on where none are named

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

/// What the chat's answers are read by and held to.
struct ToolUse {
  std::shared_ptr<const text::AnswerParser> parser;
  text::GrammarWish grammar;
  std::vector<text::Token> shown;
  std::vector<std::string> stops;
};

bool takes_prompt(const text::GrammarWish& grammar) {
  try {
    [[maybe_unused]] const text::GrammarFollower made(grammar);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

ToolUse tool_use(const text::AnswerFormat& format, const text::Tokenizer& tokenizer) {
  ToolUse use;
  use.parser = std::make_shared<const text::AnswerParser>(format);
  use.stops = format.stops;
  std::vector<std::pair<text::Token, std::string>> shown;
  for (const std::string& text : format.shown) {
    const auto tokens = tokenizer.encode(text, text::Special::as_tokens, false);
    if (tokens.size() != 1 || !tokenizer.is_control(tokens[0]) || tokenizer.ends_generation(tokens[0])) continue;
    shown.emplace_back(tokens[0], text);
    use.shown.push_back(tokens[0]);
  }
  if (format.grammar.empty()) return use;
  const auto obey = [&](const std::string& gbnf) {
    use.grammar.grammar = std::make_shared<const text::Grammar>(gbnf, tokenizer.token_texts(), shown);
  };
  obey(format.grammar);
  use.grammar.triggers = format.triggers;
  if (!format.triggers.empty()) return use;
  use.grammar.said = format.generation_prompt;
  // A call that is required comes at once, but where the prompt has begun with something else, as a thought.
  if (const std::string immediate = text::without_content(format); !immediate.empty()) {
    const text::GrammarWish whole = use.grammar;
    obey(immediate);
    if (!takes_prompt(use.grammar)) use.grammar = whole;
  }
  use.grammar.names = format.names;
  // A thought that the prompt begins: where a call would begin behind it is not known.
  if (!format.names.empty() && !takes_prompt(use.grammar)) use.grammar = {};
  return use;
}

std::vector<std::vector<text::Token>> prompts_of(const Wanted& wanted, const Backend& backend, const Limits& limits,
                                                 text::AnswerFormat* format) {
  const bool chat = format != nullptr;
  const text::Tokenizer& tokenizer = backend.tokenizer();
  std::vector<std::vector<text::Token>> prompts;
  if (chat) {
    if (wanted.messages.empty()) throw ApiError(400, "'messages' is missing").about("messages");
    if (!tokenizer.has_chat_template()) {
      throw ApiError(400, "the model has no chat template; use /v1/completions").about("messages");
    }
    prompts.push_back(has_tools(wanted) ? tokenizer.apply_tools(wanted.messages, tool_wish(wanted, limits), *format)
                                        : tokenizer.apply_chat(wanted.messages, true, wanted.template_values));
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

/// What one field says of another.
void check_together(const Wanted& wanted, const Backend& backend) {
  if (wanted.include_usage && !wanted.stream) {
    throw bad_field("stream_options.include_usage", "is for a stream; give 'stream': true, or leave it out");
  }
  if (wanted.return_progress && !wanted.stream) {
    throw bad_field("return_progress", "is for a stream; give 'stream': true, or leave it out");
  }
  if (wanted.top_logprobs && !wanted.logprobs) {
    throw bad_field("top_logprobs", "needs 'logprobs': true; give that, or leave it out");
  }
  if (wanted.watch && wanted.lossless) {
    throw bad_field("attention.watch",
                    "is not for 'attention.lossless': drafts that are taken back would stand among "
                    "the steps; leave out one of them");
  }
  if (wanted.watch && (wanted.choices > 1 || wanted.prompts.size() > 1)) {
    throw bad_field("attention.watch", "is for one answer to one prompt; leave it out, or ask for one");
  }
  if (wanted.max_tokens && wanted.min_tokens > *wanted.max_tokens) {
    throw bad_field("min_tokens",
                    fmt::format("is {}, more than 'max_tokens' ({})", wanted.min_tokens, *wanted.max_tokens));
  }
  for (const text::TokenBias& bias : wanted.sampling.logit_bias) {
    if (bias.token < backend.tokenizer().size()) continue;
    throw bad_field("logit_bias",
                    fmt::format("has the token {}, and the model has {}", bias.token, backend.tokenizer().size()));
  }
  text::validate(wanted.sampling);
}

engine::Request request_of(const Wanted& wanted, const Backend& backend, std::vector<text::Token> prompt) {
  engine::Request request;
  request.plan = plan_of(wanted, backend, std::ssize(prompt));
  request.prompt = std::move(prompt);
  request.sampling = wanted.sampling;
  request.max_tokens = wanted.max_tokens.value_or(-1);
  request.min_tokens = wanted.min_tokens;
  request.ignore_end = wanted.ignore_end;
  request.stop = wanted.stop;
  request.reuse = wanted.reuse;
  request.cache_salt = wanted.cache_salt;
  if (wanted.logprobs) request.logprobs = wanted.top_logprobs.value_or(*wanted.logprobs);
  if (wanted.echo) request.prompt_logprobs = request.logprobs;
  if (!reads_everything(request.plan)) {
    request.correct_every = wanted.correct;
    request.audit_every = wanted.audit;
    request.lossless = wanted.lossless.has_value();
    request.draft_tokens = wanted.lossless.value_or(0);
  }
  return request;
}

text::GrammarWish grammar_of(const AnswerShape& shape, const Backend& backend, const Limits& limits) {
  using Kind = AnswerShape::Kind;
  if (shape.kind == Kind::any) return {};
  try {
    std::string made;
    if (shape.kind == Kind::schema) {
      made = text::json_schema_grammar(shape.text, text::schema_limits(std::chrono::milliseconds(limits.schema_ms)));
    }
    const std::string_view gbnf = shape.kind == Kind::schema   ? std::string_view(made)
                                  : shape.kind == Kind::object ? text::json_object_grammar()
                                                               : std::string_view(shape.text);
    const text::GrammarWish wish{
        std::make_shared<const text::Grammar>(gbnf, backend.tokenizer().token_texts()), {}, {}};
    text::GrammarFollower(wish).allowed();  // what cannot even begin is refused before the answer does
    return wish;
  } catch (const UserError& error) {
    throw ApiError(400, fmt::format("'{}': {}", shape.field, error.what())).about(shape.field);
  }
}

std::shared_ptr<WatchRecord> watch_of(const engine::Request& request, const Backend& backend, const Limits& limits) {
  WatchedRequest watched;
  watched.shape = backend.engine.shape();
  watched.policy = request.plan.policy;
  watched.budget = plan::budget_text(request.plan);
  watched.kv_type = name(backend.engine.kv_type());
  watched.row_bytes = static_cast<std::int64_t>(backend.engine.row_pair_bytes());
  watched.tokenizer = &backend.tokenizer();
  watched.prompt = request.prompt;
  watched.most_bytes = limits.watch_bytes;
  return std::make_shared<WatchRecord>(std::move(watched));
}

}  // namespace

bool has_tools(const Wanted& wanted) {
  return !wanted.tools.list.empty() ||
         std::any_of(wanted.messages.begin(), wanted.messages.end(),
                     [](const text::ChatMessage& each) { return !each.calls.empty() || each.role == "tool"; });
}

text::ToolWish tool_wish(const Wanted& wanted, const Limits& limits) {
  const WantedTools& tools = wanted.tools;
  const std::string list = tools.list.empty() ? "" : fmt::format("[{}]", fmt::join(tools.list, ","));
  return {tools.choice, list, tools.parallel, wanted.template_values, std::chrono::milliseconds(limits.schema_ms)};
}

Prepared prepare(std::string_view body, FieldPlace place, const Backend& backend, const Limits& limits) {
  Wanted wanted = read_fields(body, place, limits);
  if (!wanted.model.empty()) backend.require_name(wanted.model);
  const bool chat = place == kInChat;
  if (!chat && !wanted.max_tokens) wanted.max_tokens = std::max(kUsualCompletion, wanted.min_tokens);
  check_together(wanted, backend);
  wanted.sampling.seed = wanted.seed ? *wanted.seed : std::random_device{}();

  Prepared out;
  out.chat = chat;
  out.stream = wanted.stream;
  out.include_usage = wanted.include_usage;
  out.return_progress = wanted.return_progress;
  out.logprobs = wanted.logprobs.has_value();
  out.choices = wanted.choices;
  settle_tools(wanted);
  text::AnswerFormat format;
  std::vector<std::vector<text::Token>> prompts = prompts_of(wanted, backend, limits, chat ? &format : nullptr);
  ToolUse use;
  if (wanted.tools.choice != text::ToolWish::Choice::none) {
    try {
      use = tool_use(format, backend.tokenizer());
    } catch (const UserError& error) {  // of a grammar that the client did not write
      throw ApiError(400, fmt::format("'tools': {}", error.what())).about("tools");
    }
  }
  if (wanted.shape.kind != AnswerShape::Kind::any) use.grammar = grammar_of(wanted.shape, backend, limits);
  out.parser = use.parser;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (wanted.echo) {
      const auto* text = std::get_if<std::string>(&wanted.prompts[i]);
      out.echoed.push_back({text != nullptr ? *text : backend.tokenizer().decode(prompts[i], true), prompts[i]});
    }
    out.requests.push_back(request_of(wanted, backend, std::move(prompts[i])));
    engine::Request& request = out.requests.back();
    request.grammar = use.grammar;
    request.shown = use.shown;
    request.stop.insert(request.stop.end(), use.stops.begin(), use.stops.end());
  }
  out.policy = out.requests.front().plan.policy;
  if (wanted.watch) out.watch = watch_of(out.requests.front(), backend, limits);
  out.ignored = std::move(wanted.ignored);
  return out;
}

}  // namespace glimpse::server
