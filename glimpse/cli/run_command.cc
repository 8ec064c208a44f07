// glimpse run: one prompt, one answer.
#include <fmt/format.h>

#include <optional>

#include "glimpse/base/error.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/idle.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/run_request.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/cli/trace_writer.h"

namespace glimpse::cli {
namespace {

/// The documents of -f, then an empty line, then the question of -p.
std::string prompt_text(const Arguments& arguments) {
  if (arguments.prompts.empty() && arguments.files.empty())
    throw UserError("no prompt: give -p TEXT, -f FILE, or both");
  std::string text = document_text(arguments).value_or("");
  if (const auto question = question_text(arguments)) {
    if (!arguments.files.empty()) text += "\n\n";
    text += *question;
  }
  if (text.empty()) throw UserError("the prompt is empty: give some text with -p or -f");
  return text;
}

std::vector<text::Token> encode(const text::Tokenizer& tokenizer, const Arguments& arguments, std::string prompt) {
  // Control tokens spelled out in user text stay text, with and without the template.
  if (arguments.raw) {
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
  if (arguments.interactive) return interactive_command(arguments);
  set_log(arguments);
  check_attention(arguments);
  if (arguments.lossless && arguments.trace) {
    throw UserError("--lossless and --trace: drafts that are taken back would stand among the steps; leave one out");
  }
  const engine::EngineOptions options = engine_options(arguments);
  sampling_options(arguments);
  check_stops(arguments);
  std::string prompt = prompt_text(arguments);

  if (!calibrate_first(arguments)) return kExitInterrupted;
  engine::Engine engine(options);
  std::vector<text::Token> tokens = encode(engine.tokenizer(), arguments, std::move(prompt));
  const PlanModel model = plan_model(engine);
  plan::Plan made =
      make_plan(arguments, model, wanted_context(std::ssize(tokens), arguments.predict, engine.context()));
  take_measured_minimum(arguments, model, made);
  say_what_is_lost(arguments, model, made);
  refuse_idle(arguments, {&made, 1});
  engine::Request request = make_request(arguments, made);
  request.prompt = std::move(tokens);
  request.grammar = grammar_wish(arguments, engine.tokenizer());
  if (arguments.session) request.session = *arguments.session;

  RunReport report = report_for(request);

  Output out = Output::standard();
  std::optional<TraceWriter> trace;
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
  request.on_text = emit;
  request.on_token = [&](text::Token token, std::string_view) {
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
  out.write(arguments.json ? run_json(report) + "\n" : "\n");
  out.flush();
  if (!arguments.quiet) print_note(statistics(report));
  if (report.result.reason == engine::FinishReason::failed) throw UserError(report.result.error);
  out.require_ok();
  if (trace) trace->require_ok();
  const auto& session = report.result.stats.session;
  if (session && !session->save_error.empty()) throw UserError(session->save_error);
  return report.interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace glimpse::cli
