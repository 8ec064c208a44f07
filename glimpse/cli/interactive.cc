// glimpse run -i: questions from standard input, one a line, over one prefill. At a terminal with a prompt; through a
// pipe with nothing but the answers.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/conversation.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/run_request.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/engine/session_file.h"

namespace glimpse::cli {
namespace {

constexpr std::string_view kHelp =
    "/attn NAME [BUDGET]  another method for the next answers, with its own options' defaults\n"
    "/stats               what the last answer cost\n"
    "/help                this list\n"
    "/quit                the end, as end of input";

class Dialogue {
 public:
  explicit Dialogue(const Arguments& arguments)
      : arguments_(arguments),
        engine_(engine_options(arguments)),
        plan_(make_plan(arguments, engine_.shape())),
        chat_(engine_.tokenizer(), arguments.raw, arguments.system),
        out_(Output::standard()),
        document_(document_text(arguments)) {
    if (!arguments.raw && !engine_.tokenizer().has_chat_template()) {
      throw UserError(fmt::format("'{}' has no chat template; give --raw to run the text as it is", arguments.model));
    }
  }

  int run() {
    const bool person = ::isatty(0) != 0 && ::isatty(2) != 0;
    if (person && !arguments_.quiet)
      print_note(fmt::format("{} tokens of context; /help lists commands", engine_.context()));
    if (const auto question = question_text(arguments_)) guarded([&] { ask(*question); });
    std::string line;
    while (!out_.failed()) {
      if (person) std::cerr << "> " << std::flush;
      if (!std::getline(std::cin, line)) break;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) continue;
      if (line.starts_with('/')) line.erase(line.find_last_not_of(" \t") + 1);
      if (line == "/quit" || line == "/exit") break;
      guarded([&] { line.front() == '/' ? command(line) : ask(line); });
    }
    if (std::ferror(stdin) != 0) throw UserError(fmt::format("cannot read standard input: {}", std::strerror(errno)));
    if (person) std::cerr << '\n';
    out_.require_ok();
    return refused_ ? kExitUserError : kExitOk;
  }

 private:
  /// A question or command that is refused costs nothing but itself.
  template <class Work>
  void guarded(const Work& work) {
    try {
      work();
    } catch (const UserError& error) {
      print_error(error.what());
      refused_ = true;
    }
  }

  void command(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(line.find_first_not_of(' ', space));
    if (name == "/help") {
      print_note(kHelp);
    } else if (name == "/stats") {
      if (!last_) throw UserError("no answer yet that had a cost");
      print_note(statistics(*last_));
    } else if (name == "/attn") {
      change_method(rest);
    } else {
      throw UserError(
          fmt::format("unknown command '{}'; /help lists them, and a question does not begin with '/'", excerpt(name)));
    }
  }

  void change_method(const std::string& words) {
    const std::size_t space = words.find(' ');
    Arguments changed = arguments_;
    changed.policy = words.substr(0, space);
    if (changed.policy.empty()) throw UserError("/attn needs a method; 'glimpse plan --list' names them");
    changed.policy_options.clear();
    changed.plan_file.reset();
    changed.profile.reset();
    changed.block.reset();
    changed.sink.reset();
    changed.local.reset();
    changed.budget.reset();
    if (space != std::string::npos) changed.budget = words.substr(words.find_first_not_of(' ', space));
    check_attention(changed);
    plan_ = make_plan(changed, engine_.shape());
  }

  void ask(const std::string& line) {
    require_utf8(line, "the question");
    std::string question = document_ ? *document_ + "\n\n" + line : line;
    Conversation::Turn turn;
    turn.prompt = chat_.prompt_for(question);
    turn.question = std::move(question);

    engine::Request request = make_request(arguments_, plan_);
    request.prompt = turn.prompt;
    request.keep = true;
    if (arguments_.session && !kept_) request.session = *arguments_.session;
    RunReport report = report_for(request);
    text::Utf8Stream whole;
    const auto emit = [&](std::string_view text) {
      report.text += text;
      if (arguments_.json) return;
      out_.write(text);
      out_.flush();
    };
    ProgressBar progress("prefill", "tokens", !arguments_.quiet);
    request.on_prefill = [&](std::int64_t done, std::int64_t total) {
      done < total ? progress.update(done, total) : progress.clear();
    };
    request.on_token = [&](text::Token, std::string_view bytes) { emit(whole.push(bytes)); };

    const engine::RequestId id =
        kept_ ? engine_.submit(std::move(request), std::move(*kept_)) : engine_.submit(std::move(request));
    kept_.reset();
    try {
      report.interrupted = drive(id);
    } catch (...) {
      engine_.release(id);
      throw;
    }
    progress.clear();
    report.result = engine_.result(id);
    kept_ = engine_.take(id);
    engine_.release(id);
    emit(whole.finish());
    out_.write(arguments_.json ? run_json(report) + "\n" : "\n");
    out_.flush();
    if (report.result.reason == engine::FinishReason::failed) throw UserError(report.result.error);
    turn.answer = report.result.tokens;
    turn.answer_text = report.text;
    const bool answered = !report.interrupted || !turn.answer.empty();
    last_ = std::move(report);
    if (!answered) return;
    document_.reset();
    chat_.add(std::move(turn));
  }

  /// True when Ctrl-C ended the answer.
  bool drive(engine::RequestId id) {
    const InterruptGuard interrupt;
    while (!engine_.finished(id)) {
      engine_.step();
      if (engine_.finished(id)) break;
      if (interrupt.requested() || out_.failed()) {
        engine_.cancel(id);
        return interrupt.requested();
      }
    }
    return false;
  }

  const Arguments& arguments_;
  engine::Engine engine_;
  plan::Plan plan_;
  Conversation chat_;
  Output out_;
  std::optional<std::string> document_;  ///< until it stands in the first question
  std::optional<engine::Sequence> kept_;
  std::optional<RunReport> last_;
  bool refused_ = false;
};

}  // namespace

int interactive_command(const Arguments& arguments) {
  set_log(arguments);
  check_attention(arguments);
  sampling_options(arguments);
  if (arguments.trace) throw UserError("--trace follows one answer, and -i gives several; leave one out");
  if (arguments.file && *arguments.file == "-") {
    throw UserError("-f - and -i both read standard input; give the document as a file");
  }
  if (arguments.prompt && arguments.prompt->empty()) {
    throw UserError("the prompt is empty: give some text with -p, or leave it out and ask on standard input");
  }
  if (arguments.session) engine::require_session_place(*arguments.session);  // once, not for every question
  if (arguments.system) require_utf8(*arguments.system, "the text of --system");
  if (arguments.raw && arguments.system) {
    throw UserError("--system and --raw: without a chat template there is no system message");
  }
  return Dialogue(arguments).run();
}

}  // namespace glimpse::cli
