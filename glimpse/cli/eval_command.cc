// glimpse eval logits, glimpse eval perplexity, glimpse eval sets, glimpse eval fidelity.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/report.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/cli/trace_writer.h"
#include "glimpse/evaluate/fidelity.h"
#include "glimpse/evaluate/logits.h"
#include "glimpse/evaluate/npy.h"
#include "glimpse/evaluate/perplexity.h"
#include "glimpse/evaluate/sets.h"

namespace glimpse::cli {
namespace {

std::string text_of(const Arguments& arguments) {
  const std::optional<std::string> file = text_file(arguments);
  if (!file) throw UserError("no text: give -f FILE (-: standard input)");
  return read_text(*file);
}

plan::Plan plan_of(const Arguments& arguments, const engine::Engine& engine, std::int64_t tokens) {
  const plan::Plan plan = make_plan(arguments, plan_model(engine), tokens);
  refuse_idle(arguments, {&plan, 1});
  return plan;
}

/// The plan that tokens run by. One that none runs by would be a flag without effect; the environment's is left out.
plan::Plan plan_with_decoding(const Arguments& arguments, const engine::Engine& engine, std::int64_t tokens,
                              bool decodes) {
  const plan::Plan plan = plan_of(arguments, engine, tokens);
  if (decodes || plan.prefill.sparse || reads_everything(plan)) return plan;
  if (!arguments.typed.contains("--attn") && !arguments.typed.contains("--attn-plan")) {
    return plan::dense_plan(plan.shape);
  }
  throw UserError(
      fmt::format("policy '{}' acts on decoded tokens and the prefill is dense; give {} and the rest is "
                  "decoded by the plan",
                  plan.policy, arguments.prefill ? "a smaller --prefill" : "--prefill N, the tokens to run densely"));
}

std::vector<text::Token> logits_tokens(const Arguments& arguments, const engine::Engine& engine,
                                       const std::string& text) {
  std::vector<text::Token> tokens = engine.tokenizer().encode(text, text::Special::as_text, true);
  const auto length = static_cast<std::int64_t>(tokens.size());
  if (arguments.tokens && *arguments.tokens > length) {
    throw UserError(fmt::format("--tokens {}: the text has {}", *arguments.tokens, length));
  }
  const std::int64_t wanted = arguments.tokens.value_or(length);
  if (wanted == 0) throw UserError("the text is empty");
  if (wanted > engine.context()) {
    throw UserError(fmt::format("the text has {} tokens and the context holds {}; give --tokens {} or a larger -c",
                                wanted, engine.context(), engine.context()));
  }
  if (arguments.prefill.value_or(0) > wanted) {
    throw UserError(fmt::format("--prefill {}: the text has {} tokens", *arguments.prefill, wanted));
  }
  tokens.resize(static_cast<std::size_t>(wanted));
  return tokens;
}

/// Tokens of a text of `length` that are the prompt, before the steps.
std::int64_t prompt_of(const Arguments& arguments, const engine::Engine& engine, std::int64_t length) {
  const std::int64_t steps = arguments.text_steps;
  const std::int64_t prompt = arguments.text_prompt.value_or(std::min(length, engine.context()) - steps);
  if (!arguments.text_prompt && prompt < 1) {
    throw UserError(fmt::format(
        "--steps {}: the text has {} tokens and the context holds {}, and the prompt needs one of them; give fewer "
        "--steps, more text or a larger -c",
        steps, length, engine.context()));
  }
  if (prompt < 1 || prompt + steps > length) {
    throw UserError(fmt::format("--prompt {} --steps {}: the text has {} tokens", arguments.text_prompt.value_or(1),
                                steps, length));
  }
  if (prompt + steps > engine.context()) {
    throw UserError(fmt::format("--prompt {} --steps {}: the context holds {}; give a smaller --prompt or a larger -c",
                                prompt, steps, engine.context()));
  }
  return prompt;
}

/// Of all ranges and then of all tokens, and of all layers.
std::string table_of(const evaluate::FidelityResult& result) {
  std::string text =
      "| positions | tokens | KL | top-1 | dense perplexity | perplexity |\n| --- | ---: | ---: | ---: | ---: | ---: "
      "|\n";
  const auto add = [&](std::string_view label, const evaluate::Fidelity& of) {
    const auto perplexity = [&](double nll) { return of.scored > 0 ? fmt::format("{:.3f}", std::exp(nll)) : "-"; };
    text += fmt::format("| {} | {} | {:.5f} | {:.3f} | {} | {} |\n", label, of.tokens, of.divergence, of.same_choice,
                        perplexity(of.dense_nll), perplexity(of.nll));
  };
  for (const evaluate::Fidelity& range : result.ranges) {
    add(fmt::format("{} to {}", range.first, range.first + range.tokens - 1), range);
  }
  add("all", result.all);
  text += "\n| layer | mass captured | least of a KV head in a step |\n| ---: | ---: | ---: |\n";
  for (std::size_t i = 0; i < result.layers.size(); ++i) {
    const std::optional<evaluate::LayerCoverage>& layer = result.layers[i];
    text += layer ? fmt::format("| {} | {:.4f} | {:.4f} |\n", i, layer->mean, layer->least)
                  : fmt::format("| {} | - | - |\n", i);
  }
  return text;
}

/// A row for each layer: what its KV heads read. --json has a row for each of them.
std::string heads_table(const evaluate::SetsResult& result, const plan::ModelShape& shape) {
  std::string text =
      "| layer | sets | tokens | coverage | least | mass recall | token recall | Jaccard | window hits |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  const auto number = [](std::optional<double> value, int digits) {
    return value ? fmt::format("{:.{}f}", *value, digits) : std::string("-");
  };
  const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
  for (std::size_t first = 0; first < result.heads.size(); first += kv_heads) {
    evaluate::HeadReads sum;
    for (std::size_t i = first; i < first + kv_heads; ++i) sum += result.heads[i];
    text += fmt::format("| {} | {} | {} | {:.4f} | {:.4f} | {} | {} | {} | {} |\n", first / kv_heads, sum.sparse_steps,
                        number(sum.sets.mean_tokens(), 0), sum.coverage / static_cast<double>(sum.steps),
                        sum.coverage_least, number(sum.sets.mass_recall(), 4), number(sum.sets.token_recall(), 4),
                        number(sum.tokens.jaccard(), 4), number(sum.tokens.window_hit(), 4));
  }
  return text;
}

}  // namespace

int eval_logits_command(const Arguments& arguments) {
  set_log(arguments);
  check_attention(arguments);
  const engine::EngineOptions options = engine_options(arguments);
  if (arguments.output.empty()) throw UserError("no output: give -o FILE.npy");
  const std::string text = text_of(arguments);
  if (!calibrate_first(arguments)) return kExitInterrupted;
  engine::Engine engine(options);
  const std::vector<text::Token> tokens = logits_tokens(arguments, engine, text);
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::int64_t prefill = arguments.prefill.value_or(count);
  const plan::Plan plan = plan_with_decoding(arguments, engine, count, prefill < count);

  evaluate::NpyWriter file(arguments.output, count, engine.tokenizer().size());
  ProgressBar progress("logits", "tokens", !arguments.quiet);
  const InterruptGuard interrupt;
  evaluate::forced_logits(engine, plan, {tokens, prefill, 0, [&] { return !interrupt.requested(); }},
                          [&](std::int64_t position, std::span<const float> logits) {
                            if (interrupt.requested()) return false;
                            file.add(logits);
                            progress.update(position + 1, count);
                            return true;
                          });
  if (interrupt.requested()) {
    progress.clear();
    print_note(fmt::format("interrupted; '{}' is not written", arguments.output));
    return kExitInterrupted;
  }
  file.finish();
  return kExitOk;
}

int eval_perplexity_command(const Arguments& arguments) {
  set_log(arguments);
  check_attention(arguments);
  engine::EngineOptions options = engine_options(arguments);
  options.context = arguments.window;
  const std::string text = text_of(arguments);
  if (!calibrate_first(arguments)) return kExitInterrupted;
  engine::Engine engine(options);
  const plan::Plan plan = plan_with_decoding(arguments, engine, arguments.window,
                                             arguments.prefill.value_or(arguments.window) < arguments.window - 1);
  const std::vector<text::Token> tokens = engine.tokenizer().encode(text, text::Special::as_text, true);

  evaluate::PerplexityOptions how;
  how.window = arguments.window;
  how.prefill = arguments.prefill;
  how.windows = arguments.chunks;
  ProgressBar progress("perplexity", "tokens", !arguments.quiet);
  const InterruptGuard interrupt;
  how.on_progress = [&](std::int64_t done, std::int64_t total) {
    progress.update(done, total);
    return !interrupt.requested();
  };
  how.go_on = [&] { return !interrupt.requested(); };
  const evaluate::PerplexityResult result = evaluate::perplexity(engine, plan, tokens, how);
  progress.clear();
  if (result.tokens_scored == 0) {
    print_note("interrupted before the first token was scored");
    return kExitInterrupted;
  }
  if (arguments.json) {
    print(perplexity_json(result, plan, how) + "\n");
  } else {
    std::string answer =
        fmt::format("perplexity {:.4f} +/- {:.4f} ({} tokens scored in {} windows of {})\n", result.perplexity,
                    result.standard_error, result.tokens_scored, result.windows, how.window);
    if (result.attention.dense_steps + result.attention.sparse_steps > 0) {
      answer += fmt::format("{}: read {} while decoding\n", plan.policy, share_of_dense(result.attention.kept_ratio()));
    }
    print(answer);
  }
  if (interrupt.requested()) print_note("interrupted: the result is that of the tokens scored so far");
  return interrupt.requested() ? kExitInterrupted : kExitOk;
}

int eval_sets_command(const Arguments& arguments) {
  set_log(arguments);
  check_attention(arguments);
  const engine::EngineOptions options = engine_options(arguments);
  const std::string text = text_of(arguments);
  if (!calibrate_first(arguments)) return kExitInterrupted;
  engine::Engine engine(options);
  const std::vector<text::Token> tokens = engine.tokenizer().encode(text, text::Special::as_text, true);
  const std::int64_t steps = arguments.text_steps;
  const std::int64_t prompt = prompt_of(arguments, engine, static_cast<std::int64_t>(tokens.size()));

  const plan::Plan plan = plan_of(arguments, engine, prompt + steps);
  const std::span<const text::Token> all(tokens);
  std::optional<TraceWriter> trace;
  if (!arguments.output.empty()) {
    trace.emplace(arguments.output, engine, plan, "eval sets", all.first(static_cast<std::size_t>(prompt)));
  }
  ProgressBar progress("sets", "steps", !arguments.quiet);
  const InterruptGuard interrupt;
  std::int64_t done = 0;
  evaluate::SetsCallbacks callbacks;
  callbacks.on_token = [&](text::Token token) {
    if (trace) trace->token(token);
  };
  callbacks.on_head = [&](const engine::SetTrace& sets, double coverage) {
    if (trace) trace->sets(sets, coverage);
  };
  callbacks.on_step = [&](const engine::AttentionStats& so_far) {
    progress.update(++done, steps);
    if (trace) {
      trace->step(so_far);
      trace->flush();
    }
    return !interrupt.requested() && !(trace && trace->failed());
  };
  const evaluate::SetsResult result =
      evaluate::run_sets(engine, plan, {all.first(static_cast<std::size_t>(prompt + steps)), prompt}, callbacks);
  progress.clear();
  if (trace) {
    // What the last step should have written, where the text says it.
    if (prompt + result.steps < std::ssize(tokens))
      trace->token(tokens[static_cast<std::size_t>(prompt + result.steps)]);
    trace->finish();
    trace->require_ok();
  }
  if (arguments.json) {
    print(sets_json(result, plan, prompt) + "\n");
  } else {
    print(
        fmt::format("{}: {} steps after {} tokens read {}; coverage mean {:.4f}, least {:.4f} "
                    "of a KV head in a step\n",
                    plan.policy, result.steps, prompt, share_of_dense(result.attention.kept_ratio()),
                    *result.coverage_mean, *result.coverage_min));
    print("\n" + heads_table(result, plan.shape));
    const std::optional<double> jaccard = result.units.jaccard(), hit = result.units.window_hit();
    if (jaccard && hit) {
      print(
          fmt::format("\nunits of the index: Jaccard overlap with the step before {:.4f}, hit rate of the {} steps "
                      "before {:.4f}\n",
                      *jaccard, evaluate::kStabilityWindow, *hit));
    }
  }
  if (interrupt.requested()) print_note("interrupted: the result is that of the steps so far");
  return interrupt.requested() ? kExitInterrupted : kExitOk;
}

int eval_fidelity_command(const Arguments& arguments) {
  set_log(arguments);
  check_attention(arguments);
  engine::EngineOptions options = engine_options(arguments);
  options.sequences = 2;
  const std::string text = text_of(arguments);
  if (!calibrate_first(arguments)) return kExitInterrupted;
  engine::Engine engine(options);
  std::vector<text::Token> tokens = engine.tokenizer().encode(text, text::Special::as_text, true);
  const std::int64_t prompt = prompt_of(arguments, engine, static_cast<std::int64_t>(tokens.size()));
  const std::int64_t steps = arguments.text_steps;
  if (arguments.ranges > steps && arguments.given.contains("--ranges")) {
    throw UserError(fmt::format("--ranges {} of --steps {}: a range has a token at least; give --ranges 1 to {}",
                                arguments.ranges, steps, steps));
  }
  const plan::Plan plan = plan_of(arguments, engine, prompt + steps);
  tokens.resize(static_cast<std::size_t>(prompt + steps));
  ProgressBar progress("fidelity", "steps", !arguments.quiet);
  const InterruptGuard interrupt;
  const auto go_on = [&] { return !interrupt.requested(); };
  const evaluate::FidelityResult result = evaluate::fidelity(
      engine, plan, {tokens, prompt, static_cast<int>(std::min(arguments.ranges, steps))},
      [&](std::int64_t done) {
        progress.update(done, steps);
        return go_on();
      },
      go_on);
  progress.clear();
  if (result.all.tokens == 0) {
    print_note("interrupted before the first token was decoded");
    return kExitInterrupted;
  }
  if (arguments.json) {
    print(fidelity_json(result, plan, prompt) + "\n");
  } else {
    print(fmt::format("{}: {} tokens decoded after {} read {}\n\n{}", plan.policy, result.all.tokens, prompt,
                      share_of_dense(result.attention.kept_ratio()), table_of(result)));
  }
  if (interrupt.requested()) print_note("interrupted: the result is that of the tokens decoded so far");
  return interrupt.requested() ? kExitInterrupted : kExitOk;
}

}  // namespace glimpse::cli
