// glimpse run -i: questions from standard input, one a line, over one prefill. At a terminal with a prompt; through a
// pipe with nothing but the answers.
//
// Two sequences stay in the cache between questions. One is whole: no head has forgotten a token of it, so that any
// method can go on from it. A method that forgets runs on a fork of it, which is the other and lives as long as that
// method is asked. So /attn streaming and back costs the prefill of what was said in between, and no more.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>

#include "glimpse/base/error.h"
#include "glimpse/base/printable.h"
#include "glimpse/cli/arm.h"
#include "glimpse/cli/auto_method.h"
#include "glimpse/cli/calibration.h"
#include "glimpse/cli/commands.h"
#include "glimpse/cli/conversation.h"
#include "glimpse/cli/json_output.h"
#include "glimpse/cli/run_request.h"
#include "glimpse/cli/setup.h"
#include "glimpse/cli/terminal.h"
#include "glimpse/engine/session/file.h"

namespace glimpse::cli {
namespace {

constexpr std::string_view kHelp =
    "/attn NAME [BUDGET] [KEY=VALUE...]  another method for the next answers, as an arm of 'bench decode --arms':\n"
    "                                    /attn tidal 512 reselect=13, or /attn tidal:512,reselect=13\n"
    "/clear                              a new dialogue about the same document\n"
    "/stats                              what the last answer cost\n"
    "/help                               this list, and what is kept\n"
    "/quit                               the end, as end of input";

class Dialogue {
 public:
  explicit Dialogue(const Arguments& arguments)
      : arguments_(arguments),
        engine_(options_of(arguments)),
        document_(document_text(arguments)),
        auto_(arguments.policy == kAuto && !arguments.plan_file),
        plan_(make_plan(arguments, plan_model(engine_), context_for(auto_ ? document_tokens() : 0))),
        chat_(new_chat()),
        out_(Output::standard()) {
    take_measured_minimum(arguments, plan_model(engine_), plan_);
    say_what_is_lost(arguments, plan_model(engine_), plan_);
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
  static engine::EngineOptions options_of(const Arguments& arguments) {
    engine::EngineOptions options = engine_options(arguments);
    options.sequences = 2;  // the whole one and a fork
    return options;
  }

  Conversation new_chat() const { return {engine_.tokenizer(), arguments_.raw, arguments_.system}; }

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
      print_note(kept_text());
    } else if (name == "/stats") {
      if (!last_) throw UserError("no answer yet that had a cost");
      print_note(statistics(*last_));
      print_note(kept_text());
    } else if (name == "/attn") {
      change_method(rest);
    } else if (name == "/clear") {
      clear();
    } else {
      throw UserError(fmt::format(
          "unknown command '{}'; commands are /attn, /clear, /stats, /help and /quit, and a question does not begin "
          "with '/'",
          excerpt(name)));
    }
  }

  /// What the next question finds.
  std::string kept_text() const {
    std::string text = fmt::format("method  {}", plan_.policy);
    if (const std::string budget = budget_text(plan_); !budget.empty()) text += fmt::format(", budget {}", budget);
    text += fmt::format("\nkept    {} question{} and {} answer{}", questions_, questions_ == 1 ? "" : "s", questions_,
                        questions_ == 1 ? "" : "s");
    if (document_) text += document_waits_ ? ", the document before the next question" : ", the document";
    if (whole_) {
      text += fmt::format("; {} tokens in the KV cache, for every method", whole_->length());
    } else if (!fork_) {
      text += "; nothing in the KV cache";
    }
    if (fork_) {
      text +=
          fmt::format("; {} tokens less what '{}' has forgotten, for this method alone", fork_->length(), plan_.policy);
    }
    return text;
  }

  void note_kept() const {
    if (!arguments_.quiet) print_note(kept_text());
  }

  void change_method(const std::string& words) {
    if (words.empty()) throw UserError("/attn needs a method; 'glimpse plan --list' names them");
    const Arm arm = parse_arm(words);
    const std::int64_t kept = whole_ ? whole_->length() : document_tokens();
    take(make_arm_plan(arguments_, arm, plan_model(engine_), context_for(kept)));
    auto_ = arm.policy == kAuto;
    if (!auto_) say_what_is_lost(arguments_, plan_model(engine_), arm.options, plan_);
    note_kept();
  }

  void take(plan::Plan plan) {
    if (!(plan == plan_)) fork_.reset();
    plan_ = std::move(plan);
  }

  std::int64_t document_tokens() const {
    return document_ ? std::ssize(engine_.tokenizer().encode(*document_, text::Special::as_text, false)) : 0;
  }

  std::int64_t context_for(std::int64_t prompt) const {
    return wanted_context(prompt, arguments_.predict, engine_.context());
  }

  void clear() {
    chat_ = new_chat();
    questions_ = 0;
    document_waits_ = true;
    fork_.reset();
    note_kept();
  }

  void ask(const std::string& line) {
    require_utf8(line, "the question");
    std::string question = document_ && document_waits_ ? *document_ + "\n\n" + line : line;
    Conversation::Turn turn;
    turn.prompt = chat_.prompt_for(question);
    turn.question = std::move(question);

    if (auto_) take(make_auto_plan(arguments_, plan_model(engine_), context_for(std::ssize(turn.prompt))));
    engine::Request request = make_request(arguments_, plan_);
    request.prompt = turn.prompt;
    request.grammar = grammar_wish(arguments_, engine_.tokenizer());
    request.keep = true;
    if (arguments_.session && !whole_ && !fork_) request.session = *arguments_.session;
    RunReport report = report_for(request);
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
    request.on_text = emit;

    const plan::Plan plan = request.plan;
    const engine::RequestId id = submit(std::move(request));
    try {
      report.interrupted = drive(id);
    } catch (...) {
      engine_.release(id);
      throw;
    }
    progress.clear();
    report.result = engine_.result(id);
    if (plan::forgets(plan_)) {
      fork_ = engine_.take(id);
    } else {
      whole_ = engine_.take(id);
      whole_plan_ = plan;
    }
    engine_.release(id);
    out_.write(arguments_.json ? run_json(report) + "\n" : "\n");
    out_.flush();
    if (report.result.reason == engine::FinishReason::failed) throw UserError(report.result.error);
    turn.answer = report.result.tokens;
    turn.answer_text = report.text;
    const bool answered = !report.interrupted || !turn.answer.empty();
    last_ = std::move(report);
    if (!answered) return;
    document_waits_ = false;
    ++questions_;
    chat_.add(std::move(turn));
  }

  /// Goes on from the sequence that serves the method, which is taken, or of which a fork is.
  engine::RequestId submit(engine::Request request) {
    const bool forgets = plan::forgets(request.plan);
    std::optional<engine::Sequence>& own = forgets ? fork_ : whole_;
    if (own) {
      const engine::RequestId id = engine_.submit(std::move(request), std::move(*own));
      own.reset();
      return id;
    }
    if (!whole_) return engine_.submit(std::move(request));
    return engine_.submit(std::move(request), whole_->fork(whole_plan_));
  }

  /// True when Ctrl-C ended the answer.
  bool drive(engine::RequestId id) {
    const InterruptGuard interrupt;
    while (!engine_.finished(id)) {
      step();
      if (engine_.finished(id)) break;
      if (interrupt.requested() || out_.failed()) {
        engine_.cancel(id);
        return interrupt.requested();
      }
    }
    return false;
  }

  /// Where a fork and what it came from do not fit together, the answer goes first.
  void step() {
    try {
      engine_.step();
    } catch (const UserError&) {
      if (!whole_ || !plan::forgets(plan_)) throw;
      whole_.reset();
      if (!arguments_.quiet) print_note("warning: memory is short: the whole KV cache is given up for this answer");
      engine_.step();
    }
  }

  const Arguments& arguments_;
  engine::Engine engine_;
  std::optional<std::string> document_;
  bool auto_;  ///< the method is chosen anew for each question
  plan::Plan plan_;
  Conversation chat_;
  Output out_;
  bool document_waits_ = true;  ///< for the first question of the dialogue, in which it stands
  std::int64_t questions_ = 0;
  std::optional<engine::Sequence> whole_, fork_;
  plan::Plan whole_plan_;  ///< that whole_ ran under
  std::optional<RunReport> last_;
  bool refused_ = false;
};

}  // namespace

int interactive_command(const Arguments& arguments) {
  set_log(arguments);
  check_attention(arguments);
  sampling_options(arguments);
  check_stops(arguments);
  if (std::count(arguments.files.begin(), arguments.files.end(), "-") > 0) {
    throw UserError("-f - and -i both read standard input; give the document as a file");
  }
  if (question_text(arguments) == "") {
    throw UserError("the prompt is empty: give some text with -p, or leave it out and ask on standard input");
  }
  if (arguments.session) engine::require_session_place(*arguments.session);  // once, not for every question
  if (arguments.system) require_utf8(*arguments.system, "the text of --system");
  if (!calibrate_first(arguments)) return kExitInterrupted;
  return Dialogue(arguments).run();
}

}  // namespace glimpse::cli
