// glimpse run: one prompt, one answer.
#include <fmt/format.h>

#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/report.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/cli/trace_writer.h"

namespace glimpse::cli {
namespace {

text::SamplingOptions sampling_options(const Arguments& arguments) {
  text::SamplingOptions sampling;
  sampling.temperature = static_cast<float>(arguments.temperature);
  sampling.top_k = static_cast<int>(arguments.top_k);
  sampling.top_p = static_cast<float>(arguments.top_p);
  sampling.min_p = static_cast<float>(arguments.min_p);
  sampling.repeat_penalty = static_cast<float>(arguments.repeat_penalty);
  sampling.repeat_last_n = static_cast<int>(arguments.repeat_last_n);
  sampling.frequency_penalty = static_cast<float>(arguments.frequency_penalty);
  sampling.presence_penalty = static_cast<float>(arguments.presence_penalty);
  sampling.seed = static_cast<std::uint32_t>(arguments.seed);
  return sampling;
}

/// The document of -f, then an empty line, then the question of -p.
std::string prompt_text(const Arguments& arguments) {
  if (!arguments.prompt && !arguments.file) throw UserError("no prompt: give -p TEXT, -f FILE, or both");
  std::string text;
  if (arguments.file) {
    text = read_text(*arguments.file);
    // The line end that editors leave, as llama.cpp does.
    if (!text.empty() && text.back() == '\n') text.pop_back();
  }
  if (arguments.prompt) {
    require_utf8(*arguments.prompt, "the text of -p");
    if (arguments.file) text += "\n\n";
    text += *arguments.prompt;
  }
  if (text.empty()) throw UserError("the prompt is empty: give some text with -p or -f");
  return text;
}

std::vector<text::Token> encode(const text::Tokenizer& tokenizer, const Arguments& arguments, std::string prompt) {
  // Control tokens spelled out in user text stay text, with and without the template.
  if (arguments.raw) {
    if (arguments.system) throw UserError("--system and --raw: without a chat template there is no system message");
    return tokenizer.encode(prompt, text::Special::as_text, true);
  }
  if (!tokenizer.has_chat_template()) {
    throw UserError(fmt::format("'{}' has no chat template; give --raw to run the text as it is", arguments.model));
  }
  std::vector<text::ChatMessage> messages;
  if (arguments.system) {
    require_utf8(*arguments.system, "the text of --system");
    messages.push_back({"system", *arguments.system});
  }
  messages.push_back({"user", std::move(prompt)});
  return tokenizer.apply_chat(messages, true);
}

/// Steps the request to its end, or until Ctrl-C or a failed write ends it.
bool drive(engine::Engine& engine, engine::RequestId id, const Output& out, std::optional<TraceWriter>& trace) {
  const InterruptGuard interrupt;
  while (!engine.finished(id)) {
    engine.step();
    if (trace) trace->step(engine.result(id).stats.attention);
    if (trace) trace->flush();
    if (engine.finished(id)) break;
    if (interrupt.requested() || out.failed() || (trace && trace->failed())) {
      engine.cancel(id);
      return interrupt.requested();
    }
  }
  return false;
}

}  // namespace

int run_command(const Arguments& arguments) {
  set_log(arguments);
  check_attention(arguments);
  const engine::EngineOptions options = engine_options(arguments);
  const text::SamplingOptions sampling = sampling_options(arguments);
  text::validate(sampling);
  std::string prompt = prompt_text(arguments);

  engine::Engine engine(options);
  const text::Tokenizer& tokenizer = engine.tokenizer();
  engine::Request request;
  request.prompt = encode(tokenizer, arguments, std::move(prompt));
  request.plan = make_plan(arguments, engine.shape());
  request.sampling = sampling;
  request.max_tokens = arguments.predict;
  request.correct_every = arguments.correct;

  RunReport report;
  report.policy = request.plan.policy;
  report.budget = budget_text(request.plan);

  Output out = Output::standard();
  std::optional<TraceWriter> trace;
  text::Utf8Stream whole;
  engine::RequestId id = 0;
  const auto emit = [&](std::string_view text) {
    report.text += text;
    if (arguments.json) return;
    out.write(text);
    out.flush();
  };
  ProgressBar progress("prefill", "tokens", !arguments.quiet);
  request.on_prefill = [&](std::int64_t done, std::int64_t total) {
    done < total ? progress.update(done, total) : progress.clear();
  };
  request.on_token = [&](text::Token token, std::string_view bytes) {
    emit(whole.push(bytes));
    if (!trace) return;
    trace->step(engine.result(id).stats.attention);  // the token came out of it
    trace->token(token);
  };
  if (arguments.trace) request.on_sets = [&](const engine::SetTrace& sets) { trace->sets(sets); };
  const std::vector<text::Token> prompt_tokens = arguments.trace ? request.prompt : std::vector<text::Token>();
  const plan::Plan plan = request.plan;
  // After every check of the request, so that a refused one empties no file, and before the prefill.
  id = engine.submit(std::move(request));
  if (arguments.trace) trace.emplace(*arguments.trace, engine, plan, "run", prompt_tokens);

  report.interrupted = drive(engine, id, out, trace);
  if (trace) trace->finish();
  progress.clear();
  report.result = engine.result(id);
  emit(whole.finish());
  out.write(arguments.json ? run_json(report) + "\n" : "\n");
  out.flush();
  if (!arguments.quiet) print_note(statistics(report));
  out.require_ok();
  if (trace) trace->require_ok();
  return report.interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace glimpse::cli
